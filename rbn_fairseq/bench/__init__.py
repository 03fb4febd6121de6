"""Measurements of speed: ratios, interleaved in one run."""
