"""Joins two parts of a softmax, a block of queries in each program."""

import triton
import triton.language as tl

from sparse_attn.kernels.kernel import load_rows, store_rows


# fmt: off
@triton.jit
def merge_rows(
    p_o1, p_lse1, p_o2, p_lse2, p_out, p_lse, H, N,
    s_1b, s_1h, s_1n, s_1d, s_2b, s_2h, s_2n, s_2d, s_ob, s_oh, s_on, s_od,
    D: tl.constexpr, D1: tl.constexpr, D2: tl.constexpr, BN: tl.constexpr,
    LOW: tl.constexpr, WORK: tl.constexpr,
):
    """BN queries of one head; LSEs are contiguous."""
    i_g = tl.program_id(1)
    i_b, i_h = (i_g // H).to(tl.int64), (i_g % H).to(tl.int64)
    o_n = (tl.program_id(0) * BN + tl.arange(0, BN)).to(tl.int64)
    keep = o_n < N
    o_lse = i_g.to(tl.int64) * N + o_n
    b_l1 = tl.load(p_lse1 + o_lse, mask=keep, other=float("-inf"))
    b_l2 = tl.load(p_lse2 + o_lse, mask=keep, other=float("-inf"))
    b_top = tl.maximum(b_l1, b_l2)
    b_top = tl.where(b_top == float("-inf"), 0.0, b_top)
    b_w1, b_w2 = tl.exp2(b_l1 - b_top), tl.exp2(b_l2 - b_top)
    b_total = b_w1 + b_w2
    b_some = tl.where(b_total > 0, b_total, 1.0)
    b_lse = tl.where(b_total > 0, b_top + tl.log2(b_some), float("-inf"))
    b_w1, b_w2 = (b_w1 / b_some)[:, None], (b_w2 / b_some)[:, None]
    b_a1, b_a2 = load_rows(
        p_o1 + i_b * s_1b + i_h * s_1h, o_n * s_1n, s_1d, keep, D, D1, D2, True, LOW, WORK)
    b_b1, b_b2 = load_rows(
        p_o2 + i_b * s_2b + i_h * s_2h, o_n * s_2n, s_2d, keep, D, D1, D2, True, LOW, WORK)
    b_out1 = b_a1.to(tl.float32) * b_w1 + b_b1.to(tl.float32) * b_w2
    b_out2 = b_out1
    if D2 > 0:
        b_out2 = b_a2.to(tl.float32) * b_w1 + b_b2.to(tl.float32) * b_w2
    p_out += i_b * s_ob + i_h * s_oh
    store_rows(p_out, o_n * s_on, s_od, keep, b_out1, b_out2, D, D1, D2, LOW, WORK)
    tl.store(p_lse + o_lse, b_lse, mask=keep)
# fmt: on
