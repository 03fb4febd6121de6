"""Figures of runs: the same colour for a norm in every one, one idea a file."""
