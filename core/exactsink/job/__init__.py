"""A job: its config, its plugins, what its sinks guarantee, and where its history is kept."""
