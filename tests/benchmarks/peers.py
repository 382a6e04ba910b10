"""The same cache as installed by accel, diffusers and cache-dit, with equal settings."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import accel
from accel.method import Method
from caching import DBCache, FirstBlockCache, Newton


class Contender(ABC):
    """Something that can be on a pipeline for a while and tell how many calls it skipped."""

    name = ""
    steps: int | None = None

    @abstractmethod
    def on(self, pipe: Any) -> AbstractContextManager[None]:
        """Installs it inside the `with`."""

    def reused(self) -> int | None:
        """Denoiser calls of the last generation that reused work, where it can be told."""
        return None


class Accel(Contender):
    """One of our methods."""

    def __init__(self, name: str, method: Method) -> None:
        self.name = name
        self.method = method
        self.report = accel.Report()

    @contextmanager
    def on(self, pipe: Any) -> Iterator[None]:
        with accel.patch(pipe, self.method) as handle:
            yield
            self.report = handle.report

    def reused(self) -> int | None:
        return self.report.reused


class Diffusers(Contender):
    """diffusers' first block cache: one probe block, no warm-up, tail or streak guard."""

    name = "diffusers FirstBlockCache"

    def __init__(self, threshold: float) -> None:
        self.threshold = threshold

    @contextmanager
    def on(self, pipe: Any) -> Iterator[None]:
        from diffusers import FirstBlockCacheConfig

        pipe.transformer.enable_cache(FirstBlockCacheConfig(threshold=self.threshold))
        try:
            yield
        finally:
            pipe.transformer.disable_cache()


class CacheDit(Contender):
    """cache-dit's DBCache with n head blocks, a warm-up and no other guard."""

    name = "cache-dit DBCache"

    def __init__(self, threshold: float, *, head: int, warmup: int) -> None:
        self.threshold = threshold
        self.head = head
        self.warmup = warmup
        self._cached = 0

    @contextmanager
    def on(self, pipe: Any) -> Iterator[None]:
        import cache_dit

        config = cache_dit.DBCacheConfig(
            Fn_compute_blocks=self.head,
            Bn_compute_blocks=0,
            max_warmup_steps=self.warmup,
            residual_diff_threshold=self.threshold,
        )
        cache_dit.enable_cache(pipe, cache_config=config)
        try:
            yield
            self._cached = sum(len(x.cached_steps) for x in cache_dit.summary(pipe, logging=False))
        finally:
            cache_dit.disable_cache(pipe)

    def reused(self) -> int | None:
        return self._cached


class Fewer(Contender):
    """Fewer steps, with some scheduler, instead of a cache."""

    def __init__(self, name: str, scheduler: Any, steps: int) -> None:
        self.name = f"{steps} steps, {name}"
        self.scheduler = scheduler
        self.steps = steps

    @contextmanager
    def on(self, pipe: Any) -> Iterator[None]:
        own, pipe.scheduler = pipe.scheduler, self.scheduler
        try:
            yield
        finally:
            pipe.scheduler = own


def contenders(threshold: float, *, guided: bool) -> list[Contender]:
    """Ours and theirs: twice with equal settings, then ours with its own guards and forecasts.

    cache-dit shares one state between the two calls of Flux's true guidance, so that a comparison
    with it is fair only without; where branches decide apart is only of interest with guidance.
    """
    bare = {"threshold": threshold, "tail": 0, "max_streak": None, "min_steps": 0, "batch": "mean"}
    head, warmup = 2, 4
    apart = FirstBlockCache(threshold=threshold, joint=False)
    return [
        Accel("accel FirstBlockCache, equal settings", FirstBlockCache(**bare, warmup=0)),
        Diffusers(threshold),
        Accel("accel DBCache, equal settings", DBCache(**bare, head=head, warmup=warmup)),
        *([] if guided else [CacheDit(threshold, head=head, warmup=warmup)]),
        Accel("accel FirstBlockCache", FirstBlockCache(threshold=threshold)),
        *([Accel("accel FirstBlockCache, branches apart", apart)] if guided else []),
        Accel(
            "accel FirstBlockCache, Newton(1)",
            FirstBlockCache(threshold=threshold, predictor=Newton(order=1)),
        ),
    ]
