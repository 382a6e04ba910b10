"""What a method is: a frozen, validated dataclass that binds hooks to sites of a model."""

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Self

from accel.errors import ConflictError, OptionError
from accel.sites import Hook, ModelSites, Site
from accel.work import Run


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

    def learning(self) -> "tuple[Method, Callable[[], Self]]":
        """A method that only looks on, and what gives this one back with what was seen by then.

        `accel.calibrate` uses it.

        Raises:
            OptionError: if there is nothing to learn; the callable, if too little was seen.
        """
        raise OptionError(
            f"{type(self).__name__} needs no calibration; it measures while it generates, or "
            "follows a plan."
        )

    def price(self, model: ModelSites, run: Run) -> Run:  # noqa: ARG002 -- most cannot know
        """What is left of the work of a generation's evaluations, and what is held for it.

        A method of which the schedule alone decides takes out of `run` what will not run. This one
        says that it cannot know.
        """
        return run.noted(
            f"{type(self).__name__} decides while it generates; counted as if it left out nothing"
        )

    def suited(self, *, unet: bool) -> "Method":  # noqa: ARG002 -- most are what they are
        """What this method is on a UNet, or on a model with a stack of blocks."""
        return self

    def __str__(self) -> str:
        changed = (
            f"{field.name}={getattr(self, field.name)!r}"
            for field in dataclasses.fields(self)
            if getattr(self, field.name) != field.default
        )
        return f"{type(self).__name__}({', '.join(changed)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Only(Method):
    """A method for one denoiser of a pipeline that has several (Wan 2.2, refiners).

    Attributes:
        denoiser: name of the pipeline's component, for example "transformer_2".
        method: what is put on it.

    Raises:
        OptionError: if `method` is no method.
    """

    denoiser: str
    method: Method

    def __post_init__(self) -> None:
        if not isinstance(self.method, Method) or isinstance(self.method, Only):
            raise OptionError(f"Only: method is {self.method!r}; expected a method.")

    def neutral(self) -> Self:
        """The method's neutral setting, for the same denoiser."""
        return dataclasses.replace(self, method=self.method.neutral())

    def bind(self, model: ModelSites) -> Iterator[Binding]:
        """Yields the method's hooks."""
        yield from self.method.bind(model)

    def price(self, model: ModelSites, run: Run) -> Run:
        """What the method leaves of it."""
        return self.method.price(model, run)

    def suited(self, *, unet: bool) -> "Only":
        """What the method is there, for the same denoiser."""
        return dataclasses.replace(self, method=self.method.suited(unet=unet))


@dataclass(frozen=True, slots=True, kw_only=True)
class ByModel(Method):
    """One method for UNets and another for models with a stack of blocks.

    Attributes:
        stack: what is put on models with a stack of blocks.
        unet: what is put on UNets.
    """

    stack: Method
    unet: Method

    def neutral(self) -> Self:
        """Both at their neutral settings."""
        return dataclasses.replace(self, stack=self.stack.neutral(), unet=self.unet.neutral())

    def bind(self, model: ModelSites) -> Iterator[Binding]:
        """Yields the hooks of the one that fits."""
        yield from self.suited(unet=bool(model.down)).bind(model)

    def price(self, model: ModelSites, run: Run) -> Run:
        """What the one that fits leaves of it."""
        return self.suited(unet=bool(model.down)).price(model, run)

    def suited(self, *, unet: bool) -> Method:
        """The one that fits."""
        return self.unet if unet else self.stack

    def __str__(self) -> str:
        return f"{self.stack}, on UNets {self.unet}"


def for_denoiser(methods: Sequence[Method], name: str) -> tuple[Method, ...]:
    """The methods that are meant for the denoiser `name`."""
    return tuple(
        method.method if isinstance(method, Only) else method
        for method in methods
        if not isinstance(method, Only) or method.denoiser == name
    )


def check_denoisers(methods: Sequence[Method], names: Sequence[str]) -> None:
    """Checks that every method's denoiser exists.

    Raises:
        OptionError: naming those that there are.
    """
    for method in methods:
        if isinstance(method, Only) and method.denoiser not in names:
            raise OptionError(
                f"There is no denoiser {method.denoiser!r}; there is "
                f"{', '.join(filter(None, names)) or 'one without a name'}."
            )


def check_conflicts(methods: Sequence[Method]) -> None:
    """Checks that no two methods for one denoiser claim the same work.

    Raises:
        ConflictError: naming both methods and what they share.
    """
    named = {method.denoiser for method in methods if isinstance(method, Only)}
    for name in ("", *sorted(named)):
        _check_claims(for_denoiser(methods, name))


def _check_claims(methods: Sequence[Method]) -> None:
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
