"""Attention to the centroids of skipped clusters: a block of queries in each program."""

import triton
import triton.language as tl

from sparse_attn.kernels.kernel import (
    add_values,
    empty_sums,
    finish,
    load_rows,
    products,
    store_rows,
    weigh,
)


@triton.jit
def _second_order(
    b_s,
    b_q1,
    b_q2,
    p_var,
    o_rows,
    keep,
    factor,
    D: tl.constexpr,
    D1: tl.constexpr,
    D2: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Scores plus the keys' variance along the query: what spread adds to a cluster's weight."""
    b_q1, b_q2 = b_q1.to(tl.float32), b_q2.to(tl.float32)
    b_v1, b_v2 = load_rows(p_var, o_rows, 1, keep, D, D1, D2, True, tl.float32, tl.float32)
    return b_s + products(b_q1 * b_q1, b_q2 * b_q2, b_v1, b_v2, D2, PRECISION) * factor


@triton.jit
def _rows_of_skips(p_skipped, p_segments, keep, first, K):
    """[places, 1] pointers to the row of `skipped` that holds for each place."""
    segment = tl.load(p_segments, mask=keep, other=0).to(tl.int64)
    return p_skipped + (first + segment)[:, None] * K


# fmt: off
@triton.jit
def attend_clusters(
    p_q, p_k, p_v, p_bias, p_var, p_skipped, p_segment, p_q_index, p_out, p_lse,
    scale, half_square, H, N, K, R, s_qi_g, s_qb, s_qh, s_qn, s_qd, s_ob, s_oh, s_on, s_od,
    D: tl.constexpr, D1: tl.constexpr, D2: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr,
    STAGES: tl.constexpr, Q_GATHER: tl.constexpr, VARIANCE: tl.constexpr,
    LOW: tl.constexpr, WORK: tl.constexpr, PRECISION: tl.constexpr, SQUARES: tl.constexpr,
):
    """BM places of one head; what belongs to clusters is contiguous."""
    i_g = tl.program_id(1).to(tl.int64)
    i_b, i_h = i_g // H, i_g % H
    places = (tl.program_id(0) * BM + tl.arange(0, BM)).to(tl.int64)
    keep = places < N
    tokens = places
    if Q_GATHER:
        tokens = tl.load(p_q_index + i_g * s_qi_g + places, mask=keep, other=0).to(tl.int64)
    p_rows = p_q + i_b * s_qb + i_h * s_qh
    b_q1, b_q2 = load_rows(p_rows, tokens * s_qn, s_qd, keep, D, D1, D2, True, LOW, WORK)
    p_skips = _rows_of_skips(p_skipped, p_segment + i_g * N + places, keep, i_g * R, K)
    b_acc1, b_acc2, b_m, b_l = empty_sums(BM, D1, D2)
    for first in tl.range(0, K, BK, num_stages=STAGES):
        o_k = first + tl.arange(0, BK)
        real = o_k < K
        o_rows = (i_g * K + o_k) * D
        b_k1, b_k2 = load_rows(p_k, o_rows, 1, real, D, D1, D2, True, LOW, WORK)
        b_s = products(b_q1, b_q2, b_k1, b_k2, D2, PRECISION) * scale
        if VARIANCE:
            b_s = _second_order(
                b_s, b_q1, b_q2, p_var, o_rows, real, half_square, D, D1, D2, SQUARES)
        b_bias = tl.load(p_bias + i_g * K + o_k, mask=real, other=float("-inf"))
        inside = keep[:, None] & real[None, :]
        b_skips = tl.load(p_skips + o_k[None, :], mask=inside, other=0)
        b_s = tl.where(b_skips != 0, b_s + b_bias[None, :], float("-inf"))
        b_p, b_factor, b_m, b_l = weigh(b_s, b_m, b_l, 1.0)
        b_v1, b_v2 = load_rows(p_v, o_rows, 1, real, D, D1, D2, True, LOW, WORK)
        b_acc1, b_acc2 = add_values(
            b_p, b_factor, b_v1, b_v2, b_acc1, b_acc2, D2, LOW, WORK, PRECISION)
    b_out1, b_out2, b_lse = finish(b_acc1, b_acc2, b_m, b_l, D2)
    p_rows = p_out + i_b * s_ob + i_h * s_oh
    store_rows(p_rows, tokens * s_on, s_od, keep, b_out1, b_out2, D, D1, D2, LOW, WORK)
    tl.store(p_lse + i_g * N + tokens, b_lse, mask=keep)
# fmt: on
