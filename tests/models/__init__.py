"""Tests of the model families: what a file must hold, and rotary frequencies."""
