"""Tasks with answers that can be checked, what is held out of them, and lists of items.

Every answer but those of `shuffle`, `replace-any` and `lineup` is a function of the prompt, so its
tokens can be decoded in parallel without loss. In those three the tokens depend on each other:
whoever draws them independently gets wrong answers however good the model is.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from types import MappingProxyType
from typing import Literal

from accel.errors import OptionError, nearest
from accel.zoo.language import makers
from accel.zoo.language.makers import Made

Split = Literal["train", "held_out"]

HELD_OUT_COUNT = 2000
MOST_LISTED = 4096
_ONE_IN_HELD_OUT = 10


@dataclass(frozen=True, slots=True)
class Task:
    """How items of a task are made.

    `sizes` is the range of sizes, both ends included; `long_sizes` that of the long items, which
    make up `long_share` of the listed ones. `parallel_safe` says that the prompt decides every
    token of the answer.
    """

    make: Callable[[Random, int], Made]
    sizes: tuple[int, int]
    long_sizes: tuple[int, int] | None = None
    long_share: float = 0.0
    parallel_safe: bool = True


# Long items of `lookup` have prompts of 256 tokens and more; those of the others have answers of 64
# tokens and more.
TASKS: Mapping[str, Task] = MappingProxyType(
    {
        "copy": Task(makers.copy, (4, 12), (33, 44), 1 / 3),
        "replace": Task(makers.replace, (4, 9)),
        "replace-any": Task(makers.replace_any, (3, 6), parallel_safe=False),
        "reverse": Task(makers.reverse, (4, 10)),
        "sort": Task(makers.sort, (4, 10)),
        "insert": Task(makers.insert, (4, 9)),
        "remove": Task(makers.remove, (4, 9)),
        "shuffle": Task(makers.shuffle, (3, 6), parallel_safe=False),
        "add": Task(makers.add, (2, 3)),
        "lookup": Task(makers.lookup, (4, 8), (52, 60), 1 / 2),
        "brackets": Task(makers.brackets, (2, 12)),
        "json": Task(makers.json_object, (2, 4), (9, 13), 1 / 3),
        "queue": Task(makers.queue, (3, 6), (24, 30), 1 / 3),
        "lineup": Task(makers.lineup, (2, 4), parallel_safe=False),
    }
)


@dataclass(frozen=True, slots=True)
class Item:
    """One problem: its task, its prompt, a right answer, and whether it is one of the long ones."""

    task: str
    prompt: str
    answer: str
    key: str
    long: bool = False

    def is_held_out(self) -> bool:
        """Whether this problem, however it is worded, was kept from training (one in ten)."""
        digest = hashlib.sha256(f"{self.task} {self.key}".encode()).digest()
        return int.from_bytes(digest[:4], "big") % _ONE_IN_HELD_OUT == 0


def task_named(name: str) -> Task:
    """The task `name`.

    Raises:
        OptionError: there is no such task.
    """
    if name not in TASKS:
        raise OptionError(
            f"There is no task {name!r}; there are {', '.join(TASKS)}.{nearest(name, TASKS)}"
        )
    return TASKS[name]


def random_item(
    rng: Random, name: str, split: Split = "train", *, long: bool = False, reach: float = 1.0
) -> Item:
    """An item of the task `name` and of `split`.

    Args:
        rng: Where every choice comes from.
        name: A key of `TASKS`.
        split: One problem in ten is "held_out", the others are "train".
        long: Ask for a long item; those of training are of any size above the short ones.
        reach: In 0..1, how far up the range of sizes to go, for training that begins with little.

    Raises:
        OptionError: there is no such task, or it has no long items.
    """
    task = task_named(name)
    low, high = _sizes(task, name, split) if long else task.sizes
    high = low + round(reach * (high - low))
    while True:
        item = Item(name, *task.make(rng, rng.randint(low, high)), long)
        if item.is_held_out() == (split == "held_out"):
            return item


def _sizes(task: Task, name: str, split: Split) -> tuple[int, int]:
    if task.long_sizes is None:
        with_long = [other for other, each in TASKS.items() if each.long_sizes]
        raise OptionError(f"{name} has no long items; {', '.join(with_long)} have.")
    low, high = task.long_sizes
    # Training fills the gap between short and long, so that no length comes as a surprise.
    return (low if split == "held_out" else task.sizes[1] + 1), high


def sample_items(count: int = HELD_OUT_COUNT, split: Split = "held_out") -> list[Item]:
    """The first `count` of a fixed list of distinct items of `split`, the tasks taking turns.

    Raises:
        ValueError: `count` is below 1 or above 4096.
    """
    if not 1 <= count <= MOST_LISTED:
        raise ValueError(f"count is {count}; items are listed from 1 to {MOST_LISTED}.")
    rng = Random(f"language {split}")
    found: dict[str, Item] = {}
    names = tuple(TASKS)
    while len(found) < count:
        name = names[len(found) % len(names)]
        long = rng.random() < TASKS[name].long_share
        item = random_item(rng, name, split, long=long)
        found.setdefault(item.prompt, item)
    return list(found.values())
