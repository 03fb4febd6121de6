"""Measurements of a fairseq model on its data."""

import fairseq  # noqa: F401 - which registers this and its sister packages

__all__: list[str] = []
