"""Two parts of one attention as one."""

from sparse_attn.kernels.merge.reference import merge_parts

__all__ = ["merge_parts"]
