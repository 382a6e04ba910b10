"""The nearest centroid of every vector."""

from sparse_attn.kernels.assign.reference import assign

__all__ = ["assign"]
