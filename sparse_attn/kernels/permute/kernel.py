"""A counting sort in two kernels, and one that gathers clusters and sums them up on the way.

Everything is summed in one order, so that results are the same in every run.
"""

import triton
import triton.language as tl

from sparse_attn.kernels.kernel import load_rows, store_rows


@triton.jit
def count_labels(p_label, p_count, N, K, s_lg, BT: tl.constexpr):
    """How often each label occurs in one tile: counts are [G, tiles, K] and start at 0."""
    i_t, i_g = tl.program_id(0), tl.program_id(1).to(tl.int64)
    o_n = i_t * BT + tl.arange(0, BT)
    keep = o_n < N
    b_label = tl.load(p_label + i_g * s_lg + o_n, mask=keep, other=0)
    p_tile = p_count + (i_g * tl.num_programs(0) + i_t) * K
    # Integers add up to the same in any order.
    tl.atomic_add(p_tile + b_label, 1, mask=keep)


@triton.jit
def place_tokens(p_label, p_first, p_order, N, K, s_lg, BT: tl.constexpr, BC: tl.constexpr):
    """Puts each token of one tile behind those of its label that come before it.

    `p_first` is [G, tiles, K]: where the tile's tokens of each label begin.
    """
    i_t, i_g = tl.program_id(0), tl.program_id(1).to(tl.int64)
    o_n = i_t * BT + tl.arange(0, BT)
    keep = o_n < N
    p_labels = p_label + i_g * s_lg
    b_label = tl.load(p_labels + o_n, mask=keep, other=0)
    b_rank = tl.zeros([BT], tl.int32)
    # A bound that is no constant: the compiler would unroll the loop, and spill.
    for first in tl.range(0, tl.minimum(BT, N - i_t * BT), BC):
        o_c = i_t * BT + first + tl.arange(0, BC)
        b_other = tl.load(p_labels + o_c, mask=o_c < N, other=-1)
        before = (b_label[:, None] == b_other[None, :]) & (o_c[None, :] < o_n[:, None])
        b_rank += tl.sum(before.to(tl.int32), 1)
    p_tile = p_first + (i_g * tl.num_programs(0) + i_t) * K
    b_place = tl.load(p_tile + b_label, mask=keep, other=0) + b_rank
    tl.store(p_order + i_g * N + b_place, o_n.to(tl.int64), mask=keep)


# fmt: off
@triton.jit
def sum_clusters(
    p_x, p_order, p_begin, p_size, p_mean, p_square, p_sorted, N, K, s_xg, s_xn, s_xd,
    D: tl.constexpr, D1: tl.constexpr, D2: tl.constexpr, BN: tl.constexpr, COPY: tl.constexpr,
    LOW: tl.constexpr, WORK: tl.constexpr,
):
    """Means of one cluster's tokens and of their squares, and, if COPY, the tokens in order."""
    i_k, i_g = tl.program_id(0), tl.program_id(1).to(tl.int64)
    i_c = i_g * K + i_k
    begin, size = tl.load(p_begin + i_c), tl.load(p_size + i_c)
    one = tl.arange(0, 1)
    b_sum1 = tl.zeros([D1], tl.float32)
    b_sum2, b_square1, b_square2 = b_sum1, b_sum1, b_sum1
    if D2 > 0:
        b_sum2 = tl.zeros([D2], tl.float32)
        b_square2 = b_sum2
    for first in tl.range(0, size, BN):
        o_n = first + tl.arange(0, BN)
        keep = o_n < size
        o_place = i_g * N + begin + o_n
        tokens = tl.load(p_order + o_place, mask=keep, other=0).to(tl.int64)
        b_x1, b_x2 = load_rows(
            p_x + i_g * s_xg, tokens * s_xn, s_xd, keep, D, D1, D2, True, LOW, WORK)
        if COPY:
            store_rows(p_sorted, o_place * D, 1, keep, b_x1, b_x2, D, D1, D2, LOW, WORK)
        b_x1 = b_x1.to(tl.float32)
        b_sum1 += tl.sum(b_x1, 0)
        b_square1 += tl.sum(b_x1 * b_x1, 0)
        if D2 > 0:
            b_x2 = b_x2.to(tl.float32)
            b_sum2 += tl.sum(b_x2, 0)
            b_square2 += tl.sum(b_x2 * b_x2, 0)
    count = tl.maximum(size, 1).to(tl.float32)
    o_row = i_c * D + one
    some = one < 1
    store_rows(p_mean, o_row, 1, some, (b_sum1 / count)[None, :], (b_sum2 / count)[None, :],
               D, D1, D2, tl.float32, tl.float32)
    store_rows(p_square, o_row, 1, some, (b_square1 / count)[None, :],
               (b_square2 / count)[None, :], D, D1, D2, tl.float32, tl.float32)
# fmt: on
