"""Tokens sorted by label, and what each label's tokens have in common."""

from sparse_attn.kernels.permute.reference import cluster_stats, sort_by_label

__all__ = ["cluster_stats", "sort_by_label"]
