"""What several kernels share: blocks of rows in two widths, products, the online softmax.

Names: `p_` pointers, `s_` strides, `o_` offsets, `b_` blocks. A block of rows of width D is a
pair, D1 and D2 wide, whose second part is a dummy where D2 is 0.
"""

import triton
import triton.language as tl


@triton.jit
def lowered(b_x, LOW: tl.constexpr, WORK: tl.constexpr):
    """`b_x` rounded to LOW."""
    # Only the interpreter works in float32 here, and it cuts bfloat16 off instead of rounding.
    if tl.bfloat16 == LOW and tl.float32 == WORK and b_x.dtype == tl.float32:
        b_bits = b_x.to(tl.int32, bitcast=True)
        b_bits = (b_bits + 0x7FFF + ((b_bits >> 16) & 1)) & -0x10000
        b_x = b_bits.to(tl.float32, bitcast=True)
    return b_x.to(LOW)


@triton.jit
def load_part(
    p_base,
    o_rows,
    s_d,
    keep,
    FIRST: tl.constexpr,
    WIDTH: tl.constexpr,
    D: tl.constexpr,
    MASKED: tl.constexpr,
):
    """[rows, WIDTH] columns from FIRST on; 0 beyond D and, if MASKED, where `keep` is False."""
    o_d = FIRST + tl.arange(0, WIDTH)
    p_part = p_base + o_rows[:, None] + o_d[None, :] * s_d
    # Garbage times a weight of 0 would be NaN where it is NaN, so that what is masked reads as 0.
    if FIRST + WIDTH > D:
        inside = o_d[None, :] < D
        if MASKED:
            inside = inside & keep[:, None]
        b_x = tl.load(p_part, mask=inside, other=0.0)
    elif MASKED:
        b_x = tl.load(p_part, mask=keep[:, None], other=0.0)
    else:
        b_x = tl.load(p_part)
    return b_x


@triton.jit
def load_rows(
    p_base,
    o_rows,
    s_d,
    keep,
    D: tl.constexpr,
    D1: tl.constexpr,
    D2: tl.constexpr,
    MASKED: tl.constexpr,
    LOW: tl.constexpr,
    WORK: tl.constexpr,
):
    """A pair [rows, D1], [rows, D2], rounded to LOW, in WORK."""
    b_1 = lowered(load_part(p_base, o_rows, s_d, keep, 0, D1, D, MASKED), LOW, WORK).to(WORK)
    b_2 = b_1
    if D2 > 0:
        b_2 = load_part(p_base, o_rows, s_d, keep, D1, D2, D, MASKED)
        b_2 = lowered(b_2, LOW, WORK).to(WORK)
    return b_1, b_2


@triton.jit
def store_rows(
    p_base,
    o_rows,
    s_d,
    keep,
    b_1,
    b_2,
    D: tl.constexpr,
    D1: tl.constexpr,
    D2: tl.constexpr,
    LOW: tl.constexpr,
    WORK: tl.constexpr,
):
    """Stores a pair, rounded to LOW, into the rows that `keep` names."""
    o_d = tl.arange(0, D1)
    p_1 = p_base + o_rows[:, None] + o_d[None, :] * s_d
    b_1 = lowered(b_1, LOW, WORK)
    if D1 > D:
        tl.store(p_1, b_1, mask=keep[:, None] & (o_d[None, :] < D))
    else:
        tl.store(p_1, b_1, mask=keep[:, None])
    if D2 > 0:
        o_d2 = D1 + tl.arange(0, D2)
        p_2 = p_base + o_rows[:, None] + o_d2[None, :] * s_d
        inside = keep[:, None] & (o_d2[None, :] < D)
        tl.store(p_2, lowered(b_2, LOW, WORK), mask=inside)


@triton.jit
def products(b_x1, b_x2, b_y1, b_y2, D2: tl.constexpr, PRECISION: tl.constexpr):
    """[x rows, y rows] inner products of two pairs."""
    b_s = tl.dot(b_x1, tl.trans(b_y1), input_precision=PRECISION)
    if D2 > 0:
        b_s = tl.dot(b_x2, tl.trans(b_y2), b_s, input_precision=PRECISION)
    return b_s


@triton.jit
def weigh(b_s, b_m, b_l, scale):
    """The weights of the scores `b_s * scale` in base 2, and the softmax's state with them.

    Returns:
        weights, the factor for what was summed before, the new maximum, the new sum.
    """
    # scale > 0, so that the maximum may be taken first: one fused multiply-add for each score.
    b_max = tl.maximum(b_m, tl.max(b_s, 1) * scale)
    # Where nothing was seen yet, any finite number keeps (-inf) - (-inf) = NaN away.
    b_base = tl.where(b_max == float("-inf"), 0.0, b_max)
    b_p = tl.exp2(b_s * scale - b_base[:, None])
    b_factor = tl.exp2(b_m - b_base)
    return b_p, b_factor, b_max, b_l * b_factor + tl.sum(b_p, 1)


@triton.jit
def add_values(
    b_p,
    b_factor,
    b_v1,
    b_v2,
    b_acc1,
    b_acc2,
    D2: tl.constexpr,
    LOW: tl.constexpr,
    WORK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """The pair of sums, faded by the factor, plus the weighted values."""
    b_p = lowered(b_p, LOW, WORK).to(WORK)
    b_acc1 = tl.dot(b_p, b_v1, b_acc1 * b_factor[:, None], input_precision=PRECISION)
    if D2 > 0:
        b_acc2 = tl.dot(b_p, b_v2, b_acc2 * b_factor[:, None], input_precision=PRECISION)
    return b_acc1, b_acc2


@triton.jit
def empty_sums(ROWS: tl.constexpr, D1: tl.constexpr, D2: tl.constexpr):
    """The softmax's state before any key: two sums of values, maximum, sum of weights."""
    b_acc1 = tl.zeros([ROWS, D1], tl.float32)
    b_acc2 = b_acc1
    if D2 > 0:
        b_acc2 = tl.zeros([ROWS, D2], tl.float32)
    return b_acc1, b_acc2, tl.full([ROWS], float("-inf"), tl.float32), tl.zeros([ROWS], tl.float32)


@triton.jit
def finish(b_acc1, b_acc2, b_m, b_l, D2: tl.constexpr):
    """The pair of outputs and the LSE; 0 and minus infinity where no key was seen."""
    b_some = b_l > 0
    b_sum = tl.where(b_some, b_l, 1.0)
    b_lse = tl.where(b_some, b_m + tl.log2(b_sum), float("-inf"))
    b_out1 = b_acc1 / b_sum[:, None]
    b_out2 = b_out1
    if D2 > 0:
        b_out2 = b_acc2 / b_sum[:, None]
    return b_out1, b_out2, b_lse
