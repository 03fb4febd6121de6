"""Fixtures that several tests share."""

from small_models import double_softmax

__all__ = ["double_softmax"]
