"""Attention over a list of tiles: one program for each row, keys by pointers or descriptors."""

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
def _places_of(
    r, p_head, p_q_start, p_q_len, p_q_index, s_qi_g, BM: tl.constexpr, Q_GATHER: tl.constexpr
):
    """The row's head, and for each of its queries the token and whether there is one."""
    i_g = tl.load(p_head + r)
    o_m = tl.arange(0, BM)
    keep = o_m < tl.load(p_q_len + r)
    tokens = (tl.load(p_q_start + r) + o_m).to(tl.int64)
    if Q_GATHER:
        tokens = tl.load(p_q_index + i_g.to(tl.int64) * s_qi_g + tokens, mask=keep, other=0)
        tokens = tokens.to(tl.int64)
    return i_g, tokens, keep


@triton.jit
def _locate(i_g, H, GROUP):
    """The batch entry, the head and the head of keys, in 64 bits."""
    i_h = i_g % H
    return (i_g // H).to(tl.int64), i_h.to(tl.int64), (i_h // GROUP).to(tl.int64)


@triton.jit
def _see_tile(
    state,
    b_q1,
    b_q2,
    p_k,
    p_v,
    p_index,
    start,
    length,
    strides,
    scale,
    D: tl.constexpr,
    D1: tl.constexpr,
    D2: tl.constexpr,
    BN: tl.constexpr,
    MASKED: tl.constexpr,
    KV_GATHER: tl.constexpr,
    LOW: tl.constexpr,
    WORK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """The state after the keys from `start` on, read through pointers."""
    b_acc1, b_acc2, b_m, b_l = state
    s_kn, s_kd, s_vn, s_vd = strides
    o_n = tl.arange(0, BN)
    keep = o_n < length
    if KV_GATHER:
        if MASKED:
            tokens = tl.load(p_index + start + o_n, mask=keep, other=0).to(tl.int64)
        else:
            tokens = tl.load(p_index + start + o_n).to(tl.int64)
        o_k, o_v = tokens * s_kn, tokens * s_vn
    else:
        # The 64-bit part is one number for the whole tile.
        p_k += start.to(tl.int64) * s_kn
        p_v += start.to(tl.int64) * s_vn
        o_k, o_v = o_n * s_kn, o_n * s_vn
    b_k1, b_k2 = load_rows(p_k, o_k, s_kd, keep, D, D1, D2, MASKED, LOW, WORK)
    b_s = products(b_q1, b_q2, b_k1, b_k2, D2, PRECISION)
    if MASKED:
        b_s = tl.where(keep[None, :], b_s, float("-inf"))
    b_p, b_factor, b_m, b_l = weigh(b_s, b_m, b_l, scale)
    b_v1, b_v2 = load_rows(p_v, o_v, s_vd, keep, D, D1, D2, MASKED, LOW, WORK)
    b_acc1, b_acc2 = add_values(b_p, b_factor, b_v1, b_v2, b_acc1, b_acc2, D2, LOW, WORK, PRECISION)
    return b_acc1, b_acc2, b_m, b_l


# fmt: off
@triton.jit
def attend_rows(
    p_q, p_k, p_v, p_out, p_lse, p_q_index, p_kv_index,
    p_order, p_head, p_q_start, p_q_len, p_begin, p_full, p_end, p_kv_start, p_kv_len,
    scale, H, GROUP, N, s_qi_g, s_kvi_g,
    s_qb, s_qh, s_qn, s_qd, s_kb, s_kh, s_kn, s_kd,
    s_vb, s_vh, s_vn, s_vd, s_ob, s_oh, s_on, s_od,
    D: tl.constexpr, D1: tl.constexpr, D2: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    STAGES: tl.constexpr, Q_GATHER: tl.constexpr, KV_GATHER: tl.constexpr,
    LOW: tl.constexpr, WORK: tl.constexpr, PRECISION: tl.constexpr,
):
    """One row of the list; K and V through pointers, in any order and with any strides."""
    r = tl.load(p_order + tl.program_id(0))
    i_g, tokens, keep = _places_of(
        r, p_head, p_q_start, p_q_len, p_q_index, s_qi_g, BM, Q_GATHER
    )
    i_b, i_h, i_kv = _locate(i_g, H, GROUP)
    p_rows = p_q + i_b * s_qb + i_h * s_qh
    b_q1, b_q2 = load_rows(p_rows, tokens * s_qn, s_qd, keep, D, D1, D2, True, LOW, WORK)
    p_k += i_b * s_kb + i_kv * s_kh
    p_v += i_b * s_vb + i_kv * s_vh
    if KV_GATHER:
        p_kv_index += i_g.to(tl.int64) * s_kvi_g
    strides = s_kn, s_kd, s_vn, s_vd
    state = empty_sums(BM, D1, D2)
    full = tl.load(p_full + r)
    for e in tl.range(tl.load(p_begin + r), full, num_stages=STAGES):
        state = _see_tile(
            state, b_q1, b_q2, p_k, p_v, p_kv_index, tl.load(p_kv_start + e), BN, strides, scale,
            D, D1, D2, BN, False, KV_GATHER, LOW, WORK, PRECISION)
    for e in tl.range(full, tl.load(p_end + r), num_stages=STAGES):
        state = _see_tile(
            state, b_q1, b_q2, p_k, p_v, p_kv_index, tl.load(p_kv_start + e),
            tl.load(p_kv_len + e), strides, scale,
            D, D1, D2, BN, True, KV_GATHER, LOW, WORK, PRECISION)
    b_acc1, b_acc2, b_m, b_l = state
    b_out1, b_out2, b_lse = finish(b_acc1, b_acc2, b_m, b_l, D2)
    p_out += i_b * s_ob + i_h * s_oh
    store_rows(p_out, tokens * s_on, s_od, keep, b_out1, b_out2, D, D1, D2, LOW, WORK)
    tl.store(p_lse + i_g.to(tl.int64) * N + tokens, b_lse, mask=keep)
# fmt: on
