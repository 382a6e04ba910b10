"""Where kept features lie: on the device, within a budget, or swapped to the host's memory."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from accel.sites import Form, Streams, versions_of

Lane = tuple[int, str]
"""A denoiser's generation and one of its guidance branches."""


class Swap:
    """Copies to the host's memory and back that have ended when they return, as on a CPU."""

    def out(self, tensor: Tensor) -> Tensor:
        """A copy on the host."""
        return tensor.to("cpu", copy=True)

    def back(self, host: Tensor, device: torch.device) -> Tensor:
        """A copy on the device."""
        return host.to(device, copy=True)

    def mark(self) -> Any:
        """What tells that the copies asked for so far have ended."""
        return None

    def wait(self, mark: Any) -> None:
        """Has what is computed from now on wait for those copies, without waiting itself."""

    def leave(self, tensor: Tensor) -> None:
        """Has the memory of a tensor that is let go of stay until the copies have ended."""


class CudaSwap(Swap):  # pragma: no cover -- needs a CUDA device
    """Copies on a stream of their own, from and to pinned memory, beside what is computed.

    Device memory is always allocated by the stream that computes. So it may be reused once that
    stream has waited for the copies (`wait`), or once the allocator was told of them (`leave`).
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch leaves the constructor bare

    def out(self, tensor: Tensor) -> Tensor:
        """A copy on the host, under way."""
        host = torch.empty_like(tensor, device="cpu", pin_memory=True)
        self._copy(host, tensor)
        return host

    def back(self, host: Tensor, device: torch.device) -> Tensor:
        """A copy on the device, under way."""
        tensor = torch.empty_like(host, device=device)
        self._copy(tensor, host)
        return tensor

    def mark(self) -> Any:
        """An event behind the copies."""
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch leaves the constructor bare
        event.record(self._stream)
        return event

    def wait(self, mark: Any) -> None:
        """Has the computing stream wait for the event."""
        torch.cuda.current_stream(self._device).wait_event(mark)

    def leave(self, tensor: Tensor) -> None:
        """Tells the allocator."""
        tensor.record_stream(self._stream)

    def _copy(self, target: Tensor, source: Tensor) -> None:
        # Behind what made the source, and behind what last used the memory of the target.
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)


@dataclass(slots=True, eq=False)
class Row:
    """What is kept at one place of one guidance branch, and the place that is reached next."""

    entries: "list[Entry]" = field(default_factory=list)
    following: "Row | None" = None


@dataclass(slots=True, eq=False)
class Entry:
    """One kept feature: its tensors on the device, on the host, or on both.

    Attributes:
        nbytes: on the device, with all that its tensors keep alive.
        host: the copies, or None for what is never swapped.
        row: where it is kept, None likewise.
        mark: what tells that the newest copy of it has ended.
        versions: how often the tensors on the device had been written into when they came there.
    """

    nbytes: int
    home: torch.device
    device: tuple[Tensor, ...] | None = None
    host: tuple[Tensor, ...] | None = None
    row: Row | None = None
    mark: Any = None
    versions: tuple[int, ...] = ()


class Store:
    """The features that one generation keeps, over all denoisers, branches and places.

    What is swapped is copied to the host as soon as it is kept. With a budget its device memory is
    let go of when others need the room, without one at once. It comes back before it is used: when
    a call is expected to reuse something, and then always one place ahead.

    Args:
        budget: bytes of kept features on the device, in no moment exceeded, or None for no limit.
        swaps: whether what is not in use may go to the host; else nothing is kept beyond the
            budget.

    Attributes:
        on_device: bytes on the device now; on_host: on the host.
        most_on_device: their peak; most_on_host: theirs.
        refused: bytes of what did not fit, by generation and name.
    """

    def __init__(self, budget: int | None, *, swaps: bool) -> None:
        self.budget = budget
        self.swaps = swaps
        self.on_device = self.on_host = self.most_on_device = self.most_on_host = 0
        self.refused: dict[int, dict[str, int]] = {}
        self._fixed = 0
        self._largest = 0
        self._rows: dict[Lane, dict[str, Row]] = {}
        # What is on the device and may leave it, the least recently used first.
        self._guests: dict[Entry, None] = {}
        self._ways: dict[torch.device, Swap] = {}

    def put(
        self, lane: Lane, name: str, streams: Streams, *, stays: bool = False, shared: bool = False
    ) -> Streams | None:
        """The same streams to be kept instead, or None if there is no room for them.

        Args:
            lane: whose they are.
            name: where they are kept, for the order in which they come back and for the report.
            streams: what is to be kept.
            stays: whether they are needed at every evaluation, so that swapping is of no use.
            shared: whether somebody else may write into them.
        """
        if isinstance(streams, Shelved):
            return streams
        swaps = self.swaps and not stays
        tensors = streams.tensors
        # What others may write into is copied: a copy to the host may see it late.
        private = swaps and shared
        size = _bytes(tensors) if private else _storage_bytes(tensors)
        if not self._admit(size, swaps=swaps):
            refused = self.refused.setdefault(lane[0], {})
            refused[name] = max(size, refused.get(name, 0))
            return None
        if private:
            tensors = tuple(tensor.clone() for tensor in tensors)
        entry = Entry(size, tensors[0].device)
        self._arrive(entry, tensors)
        if swaps:
            self._swap_out(entry, self._row(lane, name))
        else:
            self._fixed += size
        return Shelved(self, entry, streams)

    def expect(self, lane: Lane, *, reuse: bool) -> None:
        """Notes that what is kept for a branch is about to be used, or that it is not."""
        if not reuse:
            if self.budget is None:
                self._evict(0, ())
            return
        rows = self._rows.get(lane, {}).values()
        first = next((row for row in rows if row.entries), None)
        self._fetch_ahead([] if first is None else first.entries)

    def get(self, entry: Entry) -> tuple[Tensor, ...]:
        """The tensors of an entry, on their device and ready for what is computed next."""
        row = entry.row
        if row is None:
            assert entry.device is not None, "what is never swapped stays"
            return entry.device
        if entry.device is not None and versions_of(entry.device) != entry.versions:
            # Whom it was lent to wrote into it; the host has it as it was.
            self._leave(entry)
        near = [*row.entries, *(row.following.entries if row.following is not None else ())]
        if entry.device is None and not self._swap_in(entry, near):
            self._swap_in(entry, (entry,))
        self._fetch_ahead([other for other in near if other is not entry], (entry, *near))
        self._settle(entry)
        assert entry.device is not None, "what was admitted fits alone"
        self._guests[entry] = self._guests.pop(entry)
        return entry.device

    def free(self, entry: Entry) -> None:
        """Forgets an entry."""
        if entry.row is not None:
            entry.row.entries.remove(entry)
            self.on_host -= _bytes(entry.host or ())
        else:
            self._fixed -= entry.nbytes
        if entry.device is not None:
            self._leave(entry)

    def _admit(self, size: int, *, swaps: bool) -> bool:
        """Makes room for so many bytes more on the device, if there can be."""
        if self.budget is None:
            self._evict(size, ())
            return True
        # What always stays must leave room for the largest of those that come and go.
        needed = size if swaps else size + self._largest
        if self._fixed + needed > self.budget:
            return False
        self._largest = max(self._largest, size) if swaps else self._largest
        return self._evict(size, ())

    def _evict(self, size: int, spared: Collection[Entry]) -> bool:
        """Lets guests go until so many bytes more fit; returns whether they do.

        Places are reached in turn, so what was used last is needed last.
        """
        for guest in reversed(list(self._guests)):
            if self._fits(size) and self.budget is not None:
                return True
            if guest not in spared:
                self._leave(guest)
        return self._fits(size)

    def _fits(self, size: int) -> bool:
        return self.budget is None or self.on_device + size <= self.budget

    def _row(self, lane: Lane, name: str) -> Row:
        rows = self._rows.setdefault(lane, {})
        if name not in rows:
            row = Row()
            if rows:
                next(reversed(rows.values())).following = row
            rows[name] = row
        return rows[name]

    def _swap_out(self, entry: Entry, row: Row) -> None:
        way = self._way(entry.home)
        assert entry.device is not None, "it has just arrived"
        entry.host = tuple(way.out(tensor) for tensor in entry.device)
        entry.mark, entry.row = way.mark(), row
        row.entries.append(entry)
        self._guests[entry] = None
        self.on_host += _bytes(entry.host)
        self.most_on_host = max(self.most_on_host, self.on_host)
        if self.budget is None:
            self._leave(entry)

    def _swap_in(self, entry: Entry, spared: Collection[Entry]) -> bool:
        assert entry.host is not None, "only what is swapped leaves"
        entry.nbytes = _bytes(entry.host)
        if not self._evict(entry.nbytes, spared):
            return False
        way = self._way(entry.home)
        self._arrive(entry, tuple(way.back(host, entry.home) for host in entry.host))
        entry.mark = way.mark()
        self._guests[entry] = None
        return True

    def _fetch_ahead(self, entries: Collection[Entry], spared: Collection[Entry] = ()) -> None:
        for entry in entries:
            if entry.device is None and not self._swap_in(entry, spared or entries):
                return

    def _arrive(self, entry: Entry, tensors: tuple[Tensor, ...]) -> None:
        entry.device, entry.versions = tensors, versions_of(tensors)
        self.on_device += entry.nbytes
        self.most_on_device = max(self.most_on_device, self.on_device)

    def _leave(self, entry: Entry) -> None:
        """Lets go of an entry's tensors on the device."""
        if self.budget is not None:
            self._settle(entry)
        elif entry.mark is not None:
            for tensor in entry.device or ():
                self._way(entry.home).leave(tensor)
        entry.device = None
        self.on_device -= entry.nbytes
        self._guests.pop(entry, None)

    def _settle(self, entry: Entry) -> None:
        """Has what is computed next wait for the copy of an entry that may be under way."""
        if entry.mark is not None:
            self._way(entry.home).wait(entry.mark)
            entry.mark = None

    def _way(self, device: torch.device) -> Swap:
        if device not in self._ways:
            self._ways[device] = CudaSwap(device) if device.type == "cuda" else Swap()
        return self._ways[device]


class Shelved(Streams):
    """Streams in a store. Their tensors are on their device from when they are asked for.

    The store forgets them as soon as nobody holds them any more.
    """

    __slots__ = ("_entry", "_form", "_store")

    _entry: Entry
    _form: tuple[Form | None, Form | None]
    _store: Store

    def __init__(self, store: Store, entry: Entry, streams: Streams) -> None:
        object.__setattr__(self, "_store", store)
        object.__setattr__(self, "_entry", entry)
        object.__setattr__(self, "_form", streams.form)

    def __del__(self) -> None:
        self._store.free(self._entry)

    @property
    def hidden(self) -> Tensor:
        """The visual stream."""
        return self._store.get(self._entry)[0]

    @property
    def context(self) -> Tensor | None:
        """The text stream."""
        return None if self._form[1] is None else self._store.get(self._entry)[1]

    @property
    def form(self) -> tuple[Form | None, Form | None]:
        """Shape, dtype and device of either stream."""
        return self._form

    @property
    def versions(self) -> tuple[int, ...]:
        """Of what is swapped there is a copy that nobody writes into."""
        return () if self._entry.row is not None else versions_of(self._entry.device or ())

    @property
    def nbytes(self) -> int:
        """Bytes, wherever they are."""
        return _bytes(self._entry.device or self._entry.host or ())


def _bytes(tensors: Collection[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def _storage_bytes(tensors: Collection[Tensor]) -> int:
    # A part of a larger tensor keeps all of it alive.
    storages = {tensor.untyped_storage().data_ptr(): tensor for tensor in tensors}
    return sum(tensor.untyped_storage().nbytes() for tensor in storages.values())
