"""An operator's views, which only read, and actions, which claim first."""
