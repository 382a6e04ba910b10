"""The nearest centroid of each token: one program for a block of tokens, over all centroids."""

import triton
import triton.language as tl

from sparse_attn.kernels.kernel import load_rows, products


# fmt: off
@triton.jit
def nearest(
    p_x, p_c, p_half, p_label, N, K, s_xg, s_xn, s_xd, s_cg, s_ck, s_cd,
    D: tl.constexpr, D1: tl.constexpr, D2: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    STAGES: tl.constexpr, LOW: tl.constexpr, WORK: tl.constexpr, PRECISION: tl.constexpr,
):
    """Labels of BN tokens of one head."""
    i_g = tl.program_id(1).to(tl.int64)
    o_n = tl.program_id(0) * BN + tl.arange(0, BN)
    keep = o_n < N
    o_x = o_n.to(tl.int64) * s_xn
    b_x1, b_x2 = load_rows(p_x + i_g * s_xg, o_x, s_xd, keep, D, D1, D2, True, LOW, WORK)
    b_best = tl.full([BN], float("-inf"), tl.float32)
    b_label = tl.zeros([BN], tl.int32)
    for first in tl.range(0, K, BK, num_stages=STAGES):
        o_k = first + tl.arange(0, BK)
        real = o_k < K
        b_c1, b_c2 = load_rows(
            p_c + i_g * s_cg, o_k * s_ck, s_cd, real, D, D1, D2, True, LOW, WORK)
        b_half = tl.load(p_half + i_g * K + o_k, mask=real, other=float("inf"))
        b_s = products(b_x1, b_x2, b_c1, b_c2, D2, PRECISION) - b_half[None, :]
        b_top, b_at = tl.max(b_s, 1, return_indices=True)
        # Strictly more, so that the first of equals stays.
        better = b_top > b_best
        b_best = tl.where(better, b_top, b_best)
        b_label = tl.where(better, first + b_at, b_label)
    tl.store(p_label + i_g * N + o_n, b_label, mask=keep)
# fmt: on
