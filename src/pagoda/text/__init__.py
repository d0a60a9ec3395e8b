"""The text room."""
