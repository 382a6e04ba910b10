"""What benchmarks compare: our methods, those of other libraries, and fewer steps."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import accel
from accel.method import Method


class Contender(ABC):
    """Something that can be on a pipeline for a while and tell what it did there.

    Attributes:
        name: what it is, with its settings.
        family: whose settings make one curve together.
        peer: the library that is compared, or nothing for what leaves no trace on a pipeline.
        steps: denoising steps, or None for those that were asked for.
    """

    peer = ""
    steps: int | None = None

    def __init__(self, name: str, family: str) -> None:
        self.name = name
        self.family = family

    @abstractmethod
    def on(self, pipe: Any) -> AbstractContextManager[None]:
        """Installs it inside the `with`."""

    def facts(self) -> dict[str, Any]:
        """What the last generation says of itself, where it can be told."""
        return {}


class Accel(Contender):
    """One of our methods."""

    def __init__(self, name: str, method: Method, family: str = "") -> None:
        super().__init__(name, family or f"accel {type(method).__name__}")
        self.method = method
        self.report = accel.Report()

    @contextmanager
    def on(self, pipe: Any) -> Iterator[None]:
        with accel.patch(pipe, self.method) as handle:
            yield
            self.report = handle.report

    def facts(self) -> dict[str, Any]:
        return {
            "reused_calls": self.report.reused,
            "skipped_share": self.report.skipped_share,
            "bytes_held": self.report.bytes_held,
        }


class Diffusers(Contender):
    """A cache of diffusers; `config` makes its configuration for a pipeline."""

    peer = "diffusers"

    def __init__(self, name: str, config: Callable[[Any], Any], family: str = "") -> None:
        super().__init__(f"diffusers {name}", f"diffusers {family or name}")
        self._config = config

    @contextmanager
    def on(self, pipe: Any) -> Iterator[None]:
        pipe.transformer.enable_cache(self._config(pipe))
        try:
            yield
        finally:
            pipe.transformer.disable_cache()


class CacheDit(Contender):
    """cache-dit's DBCache, with a calibrator of its own if given.

    `options` are those of its `DBCacheConfig`. With guidance in two calls it takes every other call
    for the unconditional one only where it is told to.
    """

    peer = "cache-dit"

    def __init__(
        self, name: str, options: dict[str, Any], calibrator: str = "", family: str = ""
    ) -> None:
        super().__init__(f"cache-dit {name}", f"cache-dit {family or name}")
        self._options = options
        self._calibrator = calibrator
        self._cached = 0

    @contextmanager
    def on(self, pipe: Any) -> Iterator[None]:
        import cache_dit

        calibrator = getattr(cache_dit, f"{self._calibrator}CalibratorConfig", None)
        cache_dit.enable_cache(
            pipe,
            cache_config=cache_dit.DBCacheConfig(**self._options),
            calibrator_config=calibrator() if calibrator else None,
        )
        try:
            yield
            stats = cache_dit.summary(pipe, logging=False)
            self._cached = sum(len(x.cached_steps) + len(x.cfg_cached_steps) for x in stats)
        finally:
            cache_dit.disable_cache(pipe)

    def facts(self) -> dict[str, Any]:
        return {"reused_calls": self._cached}


class DeepCachePackage(Contender):
    """The DeepCache package, the authors' own."""

    peer = "DeepCache"

    def __init__(self, interval: int, branch: int) -> None:
        super().__init__(f"DeepCache package, interval {interval}, branch {branch}", "DeepCache")
        self._settings = {"cache_interval": interval, "cache_branch_id": branch}

    @contextmanager
    def on(self, pipe: Any) -> Iterator[None]:
        from DeepCache import DeepCacheSDHelper

        helper = DeepCacheSDHelper(pipe=pipe)
        helper.set_params(**self._settings)
        helper.enable()
        try:
            yield
        finally:
            helper.disable()


class Fewer(Contender):
    """Fewer steps, with some scheduler, instead of a cache."""

    def __init__(self, name: str, scheduler: Any, steps: int) -> None:
        super().__init__(f"{steps} steps, {name}", f"fewer steps, {name}")
        self.scheduler = scheduler
        self.steps = steps

    @contextmanager
    def on(self, pipe: Any) -> Iterator[None]:
        own, pipe.scheduler = pipe.scheduler, self.scheduler
        try:
            yield
        finally:
            pipe.scheduler = own
