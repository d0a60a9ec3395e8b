"""Tests of the backends room: the reference, the sampling rule, and the conformance suite for every other backend."""
