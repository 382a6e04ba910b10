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


# fmt: off
@triton.jit
def _see_tile(
    state, b_q1, b_q2, p_k, p_v, p_index, start, length, strides, scale,
    D: tl.constexpr, D1: tl.constexpr, D2: tl.constexpr, BN: tl.constexpr, MASKED: tl.constexpr,
    KV_GATHER: tl.constexpr, LOW: tl.constexpr, WORK: tl.constexpr, PRECISION: tl.constexpr,
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


@triton.jit
def _load_described(
    d_rows,
    at,
    start,
    FIRST: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    PER_HEAD: tl.constexpr,
):
    """[ROWS, WIDTH] of a descriptor for one head, or for all; 0 beyond the last row and D."""
    if PER_HEAD:
        b_x = d_rows.load([start, FIRST])
    else:
        i_b, i_kv = at
        b_x = d_rows.load([i_b, i_kv, start, FIRST]).reshape(ROWS, WIDTH)
    return b_x


@triton.jit
def _see_described_tile(
    state,
    b_q1,
    b_q2,
    descriptors,
    at,
    start,
    length,
    scale,
    D1: tl.constexpr,
    D2: tl.constexpr,
    BN: tl.constexpr,
    MASKED: tl.constexpr,
    PER_HEAD: tl.constexpr,
    LOW: tl.constexpr,
    WORK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """The state after the keys from `start` on, read through descriptors."""
    b_acc1, b_acc2, b_m, b_l = state
    d_k1, d_k2, d_v1, d_v2 = descriptors
    keep = tl.arange(0, BN) < length
    b_k1 = _load_described(d_k1, at, start, 0, BN, D1, PER_HEAD).to(WORK)
    b_k2 = b_k1
    if D2 > 0:
        b_k2 = _load_described(d_k2, at, start, D1, BN, D2, PER_HEAD).to(WORK)
    b_s = products(b_q1, b_q2, b_k1, b_k2, D2, PRECISION)
    if MASKED:
        b_s = tl.where(keep[None, :], b_s, float("-inf"))
    b_p, b_factor, b_m, b_l = weigh(b_s, b_m, b_l, scale)
    b_v1 = _load_described(d_v1, at, start, 0, BN, D1, PER_HEAD).to(WORK)
    b_v2 = b_v1
    if D2 > 0:
        b_v2 = _load_described(d_v2, at, start, D1, BN, D2, PER_HEAD).to(WORK)
    if MASKED:
        # What stands behind the run may be NaN, which a weight of 0 does not take away.
        b_v1 = tl.where(keep[:, None], b_v1, 0.0)
        b_v2 = tl.where(keep[:, None], b_v2, 0.0)
    b_acc1, b_acc2 = add_values(b_p, b_factor, b_v1, b_v2, b_acc1, b_acc2, D2, LOW, WORK, PRECISION)
    return b_acc1, b_acc2, b_m, b_l


@triton.jit
def _see_described_row(
    r,
    state,
    b_q1,
    b_q2,
    descriptors,
    at,
    runs,
    scale,
    D1: tl.constexpr,
    D2: tl.constexpr,
    BN: tl.constexpr,
    STAGES: tl.constexpr,
    SPECIALIZE: tl.constexpr,
    LOW: tl.constexpr,
    WORK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """The state after all of a row's keys."""
    p_begin, p_full, p_end, p_kv_start, p_kv_len = runs
    full = tl.load(p_full + r)
    for e in tl.range(tl.load(p_begin + r), full, num_stages=STAGES, warp_specialize=SPECIALIZE):
        state = _see_described_tile(
            state, b_q1, b_q2, descriptors, at, tl.load(p_kv_start + e), BN, scale,
            D1, D2, BN, False, SPECIALIZE, LOW, WORK, PRECISION)  # fmt: skip
    # The compiler divides a loop among warps only where no other loop takes over its state.
    if not SPECIALIZE:
        for e in tl.range(full, tl.load(p_end + r), num_stages=STAGES):
            state = _see_described_tile(
                state, b_q1, b_q2, descriptors, at, tl.load(p_kv_start + e),
                tl.load(p_kv_len + e), scale,
                D1, D2, BN, True, SPECIALIZE, LOW, WORK, PRECISION)  # fmt: skip
    return state


# fmt: off
@triton.jit
def attend_described_rows(
    p_q, d_k1, d_k2, d_v1, d_v2, p_out, p_lse, p_q_index,
    p_order, p_head, p_q_start, p_q_len, p_begin, p_full, p_end, p_kv_start, p_kv_len,
    scale, H, GROUP, N, s_qi_g, s_qb, s_qh, s_qn, s_qd, s_ob, s_oh, s_on, s_od,
    D: tl.constexpr, D1: tl.constexpr, D2: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    STAGES: tl.constexpr, Q_GATHER: tl.constexpr,
    LOW: tl.constexpr, WORK: tl.constexpr, PRECISION: tl.constexpr,
):
    """One row of the list; K and V through descriptors that the host made."""
    r = tl.load(p_order + tl.program_id(0))
    i_g, tokens, keep = _places_of(
        r, p_head, p_q_start, p_q_len, p_q_index, s_qi_g, BM, Q_GATHER)
    i_b, i_h, i_kv = _locate(i_g, H, GROUP)
    p_rows = p_q + i_b * s_qb + i_h * s_qh
    b_q1, b_q2 = load_rows(p_rows, tokens * s_qn, s_qd, keep, D, D1, D2, True, LOW, WORK)
    at = i_b.to(tl.int32), i_kv.to(tl.int32)
    b_acc1, b_acc2, b_m, b_l = _see_described_row(
        r, empty_sums(BM, D1, D2), b_q1, b_q2, (d_k1, d_k2, d_v1, d_v2), at,
        (p_begin, p_full, p_end, p_kv_start, p_kv_len), scale,
        D1, D2, BN, STAGES, False, LOW, WORK, PRECISION)
    b_out1, b_out2, b_lse = finish(b_acc1, b_acc2, b_m, b_l, D2)
    p_out += i_b * s_ob + i_h * s_oh
    store_rows(p_out, tokens * s_on, s_od, keep, b_out1, b_out2, D, D1, D2, LOW, WORK)
    tl.store(p_lse + i_g.to(tl.int64) * N + tokens, b_lse, mask=keep)


@triton.jit
def _describe(
    p_base, length, s_n,
    D: tl.constexpr, D1: tl.constexpr, D2: tl.constexpr, ROWS: tl.constexpr,
):
    """Descriptors for both parts of one head's rows, made on the device."""
    d_1 = tl.make_tensor_descriptor(
        p_base, shape=[length, D], strides=[s_n, 1], block_shape=[ROWS, D1])
    d_2 = d_1
    if D2 > 0:
        d_2 = tl.make_tensor_descriptor(
            p_base, shape=[length, D], strides=[s_n, 1], block_shape=[ROWS, D2])
    return d_1, d_2


@triton.jit
def attend_specialized_rows(
    p_q, p_k, p_v, p_out, p_lse,
    p_order, p_head, p_q_start, p_q_len, p_begin, p_full, p_end, p_kv_start, p_kv_len,
    scale, H, GROUP, N, M, s_qb, s_qh, s_qn,
    s_kb, s_kh, s_kn, s_vb, s_vh, s_vn, s_ob, s_oh, s_on, s_od,
    D: tl.constexpr, D1: tl.constexpr, D2: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    STAGES: tl.constexpr, LOW: tl.constexpr, WORK: tl.constexpr, PRECISION: tl.constexpr,
):
    """One row of a list of full tiles; some warps load while the others compute."""
    r = tl.load(p_order + tl.program_id(0))
    i_g, tokens, keep = _places_of(r, p_head, p_q_start, p_q_len, p_head, 0, BM, False)
    i_b, i_h, i_kv = _locate(i_g, H, GROUP)
    # Here everything must come by descriptors. What stands behind the row's queries is not stored.
    d_q1, d_q2 = _describe(p_q + i_b * s_qb + i_h * s_qh, N, s_qn, D, D1, D2, BM)
    d_k1, d_k2 = _describe(p_k + i_b * s_kb + i_kv * s_kh, M, s_kn, D, D1, D2, BN)
    d_v1, d_v2 = _describe(p_v + i_b * s_vb + i_kv * s_vh, M, s_vn, D, D1, D2, BN)
    q_start = tl.load(p_q_start + r)
    b_q1 = d_q1.load([q_start, 0]).to(WORK)
    b_q2 = b_q1
    if D2 > 0:
        b_q2 = d_q2.load([q_start, D1]).to(WORK)
    b_acc1, b_acc2, b_m, b_l = _see_described_row(
        r, empty_sums(BM, D1, D2), b_q1, b_q2, (d_k1, d_k2, d_v1, d_v2), (i_b, i_kv),
        (p_begin, p_full, p_end, p_kv_start, p_kv_len), scale,
        D1, D2, BN, STAGES, True, LOW, WORK, PRECISION)
    b_out1, b_out2, b_lse = finish(b_acc1, b_acc2, b_m, b_l, D2)
    p_out += i_b * s_ob + i_h * s_oh
    store_rows(p_out, tokens * s_on, s_od, keep, b_out1, b_out2, D, D1, D2, LOW, WORK)
    tl.store(p_lse + i_g.to(tl.int64) * N + tokens, b_lse, mask=keep)
# fmt: on
