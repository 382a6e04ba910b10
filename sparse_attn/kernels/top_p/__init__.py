"""The smallest sets of items that hold a share of the mass."""

from sparse_attn.kernels.top_p.reference import keep_mass

__all__ = ["keep_mass"]
