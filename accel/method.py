"""What a method is: a frozen, validated dataclass that binds hooks to sites of a model."""

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Self

from accel.errors import ConflictError, OptionError
from accel.sites import Hook, ModelSites, Site


class Claim(StrEnum):
    """Work that only one method may take over at a time."""

    SKIPS_BLOCKS = "skips blocks, or modules of theirs, between steps"
    SKIPS_GUIDANCE = "answers guidance calls without running them"
    REPLACES_ATTENTION = "replaces the attention of a layer"
    REDUCES_TOKENS = "removes tokens from a layer"


@dataclass(frozen=True, slots=True)
class Tunable:
    """A parameter that trades speed for quality.

    Attributes:
        name: the method's field.
        low, high: the range worth searching.
        faster: "up" if larger values are faster, else "down".
    """

    name: str
    low: float
    high: float
    faster: str


@dataclass(frozen=True, slots=True)
class Binding:
    """A hook and the site it belongs to."""

    site: Site
    hook: Hook


@dataclass(frozen=True, slots=True, kw_only=True)
class Method(ABC):
    """A published way to make generation cheaper.

    Subclass it, export the class, and it is patchable and tested.

    Class attributes:
        order: hooks of lower order run outside of higher ones (step caches 100, token reduction
            200, attention 300).
        claims: what it takes over; two methods with a common claim conflict.
        source: where it was published.
        tunables: what may be tuned, and in which range.
    """

    order: ClassVar[int] = 100
    claims: ClassVar[frozenset[Claim]] = frozenset()
    source: ClassVar[str] = ""
    tunables: ClassVar[tuple[Tunable, ...]] = ()

    @abstractmethod
    def neutral(self) -> Self:
        """This method with the setting at which it must change nothing, bit for bit."""

    @abstractmethod
    def bind(self, model: ModelSites) -> Iterator[Binding]:
        """Yields the hooks for this model.

        Raises:
            AccelUnsupportedError: if the model lacks what the method needs.
        """

    def __str__(self) -> str:
        changed = (
            f"{field.name}={getattr(self, field.name)!r}"
            for field in dataclasses.fields(self)
            if getattr(self, field.name) != field.default
        )
        return f"{type(self).__name__}({', '.join(changed)})"


def check_conflicts(methods: tuple[Method, ...]) -> None:
    """Checks that no two methods claim the same work.

    Raises:
        ConflictError: naming both methods and what they share.
    """
    for index, first in enumerate(methods):
        for second in methods[index + 1 :]:
            for claim in first.claims & second.claims:
                raise ConflictError(
                    f"{type(first).__name__} and {type(second).__name__} both want to be the "
                    f"method that {claim}. Choose one of them."
                )


def require_number(
    owner: object,
    name: str,
    value: float | None,
    *,
    low: float,
    high: float = math.inf,
    whole: bool = False,
) -> None:
    """Checks one numeric option of a method.

    Raises:
        OptionError: if the value is no number, not finite below a finite bound, or outside `low` to
            `high`.
    """
    kinds = (int,) if whole else (int, float)
    valid = (
        isinstance(value, kinds)
        and not isinstance(value, bool)
        and not math.isnan(value)
        and low <= value <= high
    )
    if valid:
        return
    kind = "a whole number" if whole else "a number"
    limits = f"from {low} up" if high == math.inf else f"from {low} to {high}"
    raise OptionError(f"{type(owner).__name__}: {name} is {value!r}; expected {kind} {limits}.")
