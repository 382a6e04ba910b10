"""Faster Diffusion: hold all that a UNet's encoder made, and run its decoder with the new time."""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import ClassVar, Self

from accel.errors import OptionError
from accel.method import Binding, Claim, Method, Tunable, require_number
from accel.sites import ModelSites
from accel.work import Run
from caching.decode_ahead import DecodeAhead
from caching.decoder import DecoderUNet
from caching.prices import unet_run
from caching.prior_noise import PriorNoise
from caching.unet import UNetPath
from caching.unet_cache import UNetRule

_PUBLISHED_KEYS = (0, 1, 2, 3, 5, 10, 15, 25, 35)


@dataclass(frozen=True, slots=True, kw_only=True)
class FasterDiffusion(Method):
    """Runs the whole UNet on key evaluations, and on the others its decoder with the new time.

    Kept are the middle's output and every feature that skips to the decoder, with what a ControlNet
    added to them. The decoder then needs neither the latents nor the ControlNet, so several
    evaluations can be decoded as one batch.

    Source: Faster Diffusion (arXiv 2312.09608), sections 3.2 to 3.4. Departures: warm-up, tail and
    minimum-step guards; key sets rescale to other numbers of steps; the batch of `parallel`
    evaluations holds those behind a key one, which runs alone, and the pipeline's own loop replays
    it; prior noise follows the scheduler's scale, and is added once something was reused.

    Attributes:
        keys: key evaluations of a schedule of `of`. Other schedules have theirs at the same shares.
            The published set is the default.
        of: length of the schedule that `keys` is for.
        every: if given, every such evaluation is a key one instead; 1 changes nothing.
        parallel: most evaluations that are decoded as one batch, from 1 (one by one) up. Equal to
            decoding one by one up to rounding; memory grows with it. Attention that mixes the
            samples of a batch (frames as samples) needs 1.
        prior_noise: share of the initial noise that is given back at each evaluation of the second
            half of the schedule, 0 (none) to 1; 0.003 is the published value.
        warmup: first evaluations that always run whole.
        tail: last evaluations that always run whole.
        min_steps: schedules of at most this many evaluations run whole throughout.

    Raises:
        OptionError: for a value outside its range.
    """

    keys: tuple[int, ...] = _PUBLISHED_KEYS
    of: int = 50
    every: int | None = None
    parallel: int = 1
    prior_noise: float = 0.003
    warmup: int = 1
    tail: int = 1
    min_steps: int = 8

    order: ClassVar[int] = 100
    claims: ClassVar[frozenset[Claim]] = frozenset({Claim.SKIPS_BLOCKS})
    source: ClassVar[str] = "arXiv 2312.09608"
    tunables: ClassVar[tuple[Tunable, ...]] = (Tunable("every", 1, 8, "up"),)

    def __post_init__(self) -> None:
        for name in ("of", "parallel", *(("every",) if self.every is not None else ())):
            require_number(self, name, getattr(self, name), low=1, whole=True)
        for name in ("warmup", "tail", "min_steps"):
            require_number(self, name, getattr(self, name), low=0, whole=True)
        require_number(self, "prior_noise", self.prior_noise, low=0.0, high=1.0)
        if not isinstance(self.keys, tuple):
            raise OptionError(
                f"{type(self).__name__}: keys is {self.keys!r}; expected a tuple of evaluations."
            )
        for key in self.keys:
            require_number(self, "keys", key, low=0, high=self.of - 1, whole=True)

    def neutral(self) -> Self:
        """Every evaluation is a key one, and no noise is added."""
        return replace(self, every=1, prior_noise=0.0)

    def bind(self, model: ModelSites) -> Iterator[Binding]:
        """Yields the hooks of the denoiser and of all its blocks.

        Raises:
            AccelUnsupportedError: if the model is no UNet of the usual layout.
        """
        yield from self._cache(model).bind()

    def price(self, model: ModelSites, run: Run) -> Run:
        """The whole UNet runs at key evaluations, its decoder at the others."""
        return unet_run(run, self._cache(model))

    def _cache(self, model: ModelSites) -> DecoderUNet:
        rule = UNetRule(
            warmup=self.warmup,
            tail=self.tail,
            min_steps=self.min_steps,
            newest_whole=self._newest_whole,
            never_rests=self.every == 1,
        )
        path = UNetPath(type(self).__name__, model)
        ahead = DecodeAhead(self.parallel, lambda step, steps: rule.whole(step, steps) is None)
        return DecoderUNet(rule, path, ahead, PriorNoise(self.prior_noise))

    def _newest_whole(self, step: int, steps: int | None) -> int | None:
        if self.every is not None:
            return step - step % self.every
        if steps is None:
            return None
        keys = rescaled(self.keys, self.of, steps)
        return keys[bisect_right(keys, step) - 1]


@cache
def rescaled(keys: tuple[int, ...], of: int, steps: int) -> tuple[int, ...]:
    """The evaluations of a schedule of `steps` at the shares that `keys` have of one of `of`.

    Rounded to the nearest; the first evaluation is always among them.
    """
    return tuple(sorted({0, *(min(round(key * steps / of), steps - 1) for key in keys)}))
