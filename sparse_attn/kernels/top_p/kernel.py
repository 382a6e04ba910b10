"""The smallest set of weights above a threshold that has a share of the mass, without a sort."""

import triton
import triton.language as tl


@triton.jit
def _bits(p_row, o_k, K, s_k, top):
    """Weights of a chunk, and as the integers that order them: those of positive floats do."""
    b_s = tl.load(p_row + o_k * s_k, mask=o_k < K, other=float("-inf")).to(tl.float32)
    b_w = tl.exp2(b_s - top)
    return b_w, b_w.to(tl.int32, bitcast=True)


@triton.jit
def _mass(p_row, K, s_k, top, least, BK: tl.constexpr):
    """The mass of the weights whose integers are at least `least`."""
    b_mass = tl.zeros([BK], tl.float32)
    for first in range(0, K, BK):
        b_w, b_bits = _bits(p_row, first + tl.arange(0, BK), K, s_k, top)
        b_mass += tl.where(b_bits >= least, b_w, 0.0)
    return tl.sum(b_mass, 0)


@triton.jit
def keep_share(p_score, p_keep, p, R, K, s_g, s_r, s_k, BK: tl.constexpr, ALL: tl.constexpr):
    """One row of K weights. The threshold is exact: thirty halvings leave one float."""
    i_r, i_g = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    p_row = p_score + i_g * s_g + i_r * s_r
    b_top = tl.full([BK], float("-inf"), tl.float32)
    for first in range(0, K, BK):
        o_k = first + tl.arange(0, BK)
        b_s = tl.load(p_row + o_k * s_k, mask=o_k < K, other=float("-inf")).to(tl.float32)
        b_top = tl.maximum(b_top, b_s)
    top = tl.max(b_top, 0)
    top = tl.where(top == float("-inf"), 0.0, top)
    # From the smallest positive float, which keeps all mass, to 1, the weight of the largest.
    low, high = 1, 0x3F800001
    if not ALL:
        wanted = p * _mass(p_row, K, s_k, top, low, BK)
        for _halving in range(30):
            middle = (low + high) // 2
            enough = _mass(p_row, K, s_k, top, middle, BK) >= wanted
            low = tl.where(enough, middle, low)
            high = tl.where(enough, high, middle)
    p_out = p_keep + (i_g * R + i_r) * K
    for first in range(0, K, BK):
        o_k = first + tl.arange(0, BK)
        _b_w, b_bits = _bits(p_row, o_k, K, s_k, top)
        tl.store(p_out + o_k, (b_bits >= low).to(tl.int8), mask=o_k < K)
