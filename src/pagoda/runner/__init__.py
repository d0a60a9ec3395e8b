"""The runner room."""
