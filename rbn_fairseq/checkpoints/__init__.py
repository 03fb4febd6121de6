"""Checkpoint files: safe loading, resuming, averages, folded norms."""

import fairseq  # noqa: F401 - which registers this and its sister packages

__all__: list[str] = []
