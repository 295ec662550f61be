"""A job: its config, its plugins, the guarantees of its sinks, and the place of its history."""
