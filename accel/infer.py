"""What flows through the blocks of an unknown model, worked out from the shapes of one call."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise

from accel.sites import BlockIO, Site

Shape = tuple[int, ...]
Position = int | None
"""Where in a block's output a tensor stands; None for an output that is the tensor itself."""

_HIDDEN = "hidden_states"
# What libraries call the stream beside the picture: text, sound, or what attends to both.
_BESIDE = re.compile(r"encoder|context|text|txt|cond|prompt|aud")


@dataclass(frozen=True, slots=True)
class Passage:
    """One call of one block: what tensors went in and came out, and where they came from.

    Attributes:
        stack: path of the list that holds the block.
        order: when it ran, counted over all lists.
        inputs: shapes of the tensors among the arguments, by name.
        outputs: shapes of the tensors that came out, by position.
        length: entries of the tuple that came out, or None for a bare tensor.
        links: by list, which output of that list's newest call came in as which argument.
        clean: whether no argument is an output of an older call than the newest of its list, or
            was written into since it came out.
    """

    site: Site
    stack: str
    order: int
    inputs: Mapping[str, Shape]
    outputs: Mapping[Position, Shape]
    length: int | None
    links: Mapping[str, Mapping[Position, str]] = field(default_factory=dict)
    clean: bool = True


class CannotInfer(Exception):  # noqa: N818 -- a reason, which the caller turns into an error
    """Why the streams through a list of blocks could not be told."""


class NoStack(CannotInfer):
    """A list of modules that no stream flows through: no blocks, so nothing that was missed."""


@dataclass(frozen=True, slots=True)
class Stack:
    """A list of blocks that ran, with how its blocks carry the streams.

    Attributes:
        passages: the calls of the blocks that leave every stream's shape as it is, in order.
        ios: how each of these carries the streams.
        size: parameters in the list.
    """

    name: str
    passages: tuple[Passage, ...]
    ios: tuple[BlockIO, ...]
    size: int


@dataclass(frozen=True, slots=True)
class Flow:
    """The blocks that the picture flows through, in running order, and how.

    Attributes:
        blocks: sites with their streams and segments.
        direct: whether each block gets just what the block before it returned.
    """

    blocks: tuple[Site, ...]
    direct: bool


def read_stack(name: str, passages: Sequence[Passage], size: int) -> Stack:
    """How the blocks of one list carry their streams.

    Blocks of one class carry them alike. Blocks that change a stream's shape are left out.

    Raises:
        NoStack: if they carry none.
        CannotInfer: if that cannot be told.
    """
    classes: dict[type, list[Passage]] = {}
    for passage in passages:
        classes.setdefault(type(passage.site.module), []).append(passage)
    following = {before.order: after for before, after in pairwise(passages)}
    ios = {cls: _block_io(group, following) for cls, group in classes.items()}
    kept = [
        (passage, io)
        for passage in passages
        if _keeps_shapes(passage, io := ios[type(passage.site.module)])
    ]
    if not kept:
        raise NoStack(f"{name} returns nothing shaped like what goes in")
    return Stack(name, tuple(p for p, _ in kept), tuple(io for _, io in kept), size)


def _block_io(passages: Sequence[Passage], following: Mapping[int, Passage]) -> BlockIO:
    streams = _linked(passages, following)
    streams |= _alike(passages, streams)
    path = passages[0].site.path
    if not streams:
        raise NoStack(f"{path} returns nothing that is clearly one of its inputs, gone on")
    if len(streams) > 2:  # noqa: PLR2004 -- `Streams` holds a picture and one beside it
        raise CannotInfer(f"{path} carries {len(streams)} streams, and accel knows two")
    hidden = _hidden(streams, path)
    others = [position for position in streams if position != hidden]
    context = others[0] if others else None
    needed = 1 + max((p for p in streams if p is not None), default=-1)
    length = max((passage.length or 0 for passage in passages), default=0)
    return BlockIO(
        hidden=streams[hidden],
        hidden_index=hidden,
        context=streams[context] if others else None,
        context_index=context,
        length=length if length > needed else None,
    )


def _linked(passages: Sequence[Passage], following: Mapping[int, Passage]) -> dict[Position, str]:
    """The outputs that the next block of the list gets as they are, by its argument's name."""
    votes: dict[Position, Counter[str]] = {}
    for passage in passages:
        after = following.get(passage.order)
        links = {} if after is None else after.links.get(passage.stack, {})
        for position, name in links.items():
            if passage.inputs.get(name) == passage.outputs[position]:
                votes.setdefault(position, Counter())[name] += 1
    winners = {position: count.most_common(1)[0] for position, count in votes.items()}
    clear = {
        position: name
        for position, (name, count) in winners.items()
        if 2 * count > votes[position].total()
    }
    # Two outputs that go the same way are no two streams.
    return clear if len(set(clear.values())) == len(clear) else {}


def _alike(passages: Sequence[Passage], known: Mapping[Position, str]) -> dict[Position, str]:
    """Further streams, told by shape and name, where something happens between the blocks."""
    first = next(iter(passages[0].site.positions), _HIDDEN)
    names = [
        name
        for name in passages[0].inputs
        if name not in known.values() and (name in (_HIDDEN, first) or _BESIDE.search(name))
    ]
    positions = {p for passage in passages for p in passage.outputs} - set(known)
    fits = {p: [name for name in names if _fits(passages, p, name)] for p in positions}
    taken = Counter(name for found in fits.values() for name in found)
    # Equal shapes leave the order open; guessing would swap text and image.
    return {
        position: found[0]
        for position, found in fits.items()
        if len(found) == 1 and taken[found[0]] == 1
    }


def _fits(passages: Sequence[Passage], position: Position, name: str) -> bool:
    return all(
        passage.outputs[position] == passage.inputs.get(name)
        for passage in passages
        if position in passage.outputs
    )


def _hidden(streams: Mapping[Position, str], path: str) -> Position:
    """The position of the picture among one or two streams."""
    beside = [p for p, name in streams.items() if _BESIDE.search(name) and name != _HIDDEN]
    named = [p for p, name in streams.items() if name == _HIDDEN]
    candidates = named or [p for p in streams if p not in beside]
    if len(streams) == 1:
        candidates = list(streams)
    if len(candidates) != 1:
        names = " and ".join(repr(name) for name in streams.values())
        raise CannotInfer(f"{path} carries {names}, and their names do not tell the picture")
    return candidates[0]


def _keeps_shapes(passage: Passage, io: BlockIO) -> bool:
    kept = passage.outputs.get(io.hidden_index) == passage.inputs.get(io.hidden)
    if io.context is None or io.context_index not in passage.outputs:
        return kept
    return kept and passage.outputs[io.context_index] == passage.inputs.get(io.context)


def find_flow(stacks: Sequence[Stack]) -> Flow:
    """The largest list of blocks, and what lies before and after it on the picture's way.

    Raises:
        CannotInfer: if no list has two blocks.
    """
    long = [stack for stack in stacks if len(stack.passages) > 1]
    if not long:
        raise CannotInfer("it has no list of two blocks through which one picture flows")
    way = [max(long, key=lambda stack: (stack.size, stack.passages[-1].order))]
    for stack in sorted(stacks, key=lambda stack: stack.passages[-1].order, reverse=True):
        if _feeds(stack, way[0]):
            way.insert(0, stack)
    for stack in sorted(stacks, key=lambda stack: stack.passages[0].order):
        if _feeds(way[-1], stack):
            way.append(stack)
    return _number(list(chain.from_iterable(zip(s.passages, s.ios, strict=True) for s in way)))


def _feeds(before: Stack, after: Stack) -> bool:
    """Whether the picture goes from the end of one list straight to the start of the other."""
    last, first = before.passages[-1], after.passages[0]
    if last.order >= first.order:
        return False
    io, next_io = before.ios[-1], after.ios[0]
    if first.links.get(before.name, {}).get(io.hidden_index) == next_io.hidden:
        return True
    return _joins(last, io, first.inputs[next_io.hidden])


def _joins(last: Passage, io: BlockIO, shape: Shape) -> bool:
    """Whether a stream [B, T + N, C] may be the picture [B, N, C] behind its text [B, T, C]."""
    if io.context_index is None or io.context_index not in last.outputs:
        return False
    hidden, context = last.outputs[io.hidden_index], last.outputs[io.context_index]
    return (
        len(shape) == len(hidden) == len(context) > 1
        and shape[:1] + shape[2:] == hidden[:1] + hidden[2:] == context[:1] + context[2:]
        and shape[1] == hidden[1] + context[1]
    )


def _number(blocks: Sequence[tuple[Passage, BlockIO]]) -> Flow:
    """Sites with the number of the segment that they belong to."""
    sites, segment, direct = [], 0, True
    before: tuple[Passage, BlockIO] | None = None
    for passage, io in blocks:
        if before is not None:
            last, last_io = before
            links = passage.links.get(last.stack, {})
            segment += not _continues(last, last_io, passage, io)
            handed = links.get(last_io.hidden_index) == io.hidden
            direct = direct and (handed or _joins(last, last_io, passage.inputs[io.hidden]))
        direct = direct and passage.clean
        site = passage.site
        sites.append(Site(site.kind, site.path, site.module, io, segment))
        before = passage, io
    return Flow(tuple(sites), direct)


def _continues(last: Passage, io: BlockIO, after: Passage, next_io: BlockIO) -> bool:
    """Whether what one block returned is, stream for stream, what the next one got."""
    ways = dict(_ways(io))
    if any(
        ways.get(position, name) != name
        for position, name in after.links.get(last.stack, {}).items()
    ):
        return False
    if io != next_io or (last.stack != after.stack and not after.links.get(last.stack)):
        return False
    return all(
        last.outputs[position] == after.inputs[name]
        for position, name in ways.items()
        if position in last.outputs and name in after.inputs
    )


def _ways(io: BlockIO) -> Iterator[tuple[Position, str]]:
    yield io.hidden_index, io.hidden
    if io.context is not None and io.context_index is not None:
        yield io.context_index, io.context
