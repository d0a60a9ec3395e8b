"""The obs room."""
