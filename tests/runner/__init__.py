"""Tests of the machine room: plans to arrays, arrays to tokens, and what a machine must have for it."""
