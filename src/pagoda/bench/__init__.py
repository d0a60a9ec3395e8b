"""Measurements that users run: what `pagoda bench` prints, and what benchmarks/ sets beside other engines."""
