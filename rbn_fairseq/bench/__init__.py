"""Benchmarks: what is compared is timed in turn, in one process."""
