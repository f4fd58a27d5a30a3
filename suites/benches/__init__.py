"""Benches for pytest-benchmark."""
