"""Attention to the pseudo-keys that stand in for skipped clusters."""

from sparse_attn.kernels.tail.reference import attend_tail

__all__ = ["attend_tail"]
