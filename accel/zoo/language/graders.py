"""Whether an answer is right, task by task, read off the prompt and the answer's text."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from accel.zoo.language.makers import NAME_SEPARATOR
from accel.zoo.language.tasks import Item, task_named


def is_right(item: Item, text: str) -> bool:
    """Whether `text` answers `item`: exactly, or in one of the allowed ways where several are.

    Raises:
        OptionError: there is no such task.
    """
    if task_named(item.task).parallel_safe:
        return text == item.answer
    return _SEVERAL_RIGHT[item.task](item.prompt.partition(": ")[2], text)


def _is_permutation(given: str, text: str) -> bool:
    return sorted(text) == sorted(given)


def _is_lineup(given: str, text: str) -> bool:
    return sorted(text.split(NAME_SEPARATOR)) == sorted(given.split(NAME_SEPARATOR))


def _replaces_one(given: str, text: str) -> bool:
    letters, _, new = given.removeprefix("one of ").partition(" by ")
    return any(
        text == letters[:place] + new + letters[place + 1 :] for place in range(len(letters))
    )


_SEVERAL_RIGHT: Mapping[str, Callable[[str, str], bool]] = MappingProxyType(
    {"shuffle": _is_permutation, "lineup": _is_lineup, "replace-any": _replaces_one}
)


def count_right(items: Sequence[Item], texts: Sequence[str]) -> dict[str, tuple[int, int]]:
    """By task, how many answers are right and how many items there are.

    Raises:
        ValueError: there are not as many texts as items.
    """
    counts: dict[str, tuple[int, int]] = {}
    for item, text in zip(items, texts, strict=True):
        right, total = counts.get(item.task, (0, 0))
        counts[item.task] = (right + is_right(item, text), total + 1)
    return counts
