"""The loop that trains the zoo's denoisers on a CPU: resumable, and over when the time is over.

Schedules run on elapsed seconds, so training ends on time however busy the machine is. It goes
through stages, from small and cheap samples to those of full size.
"""

import argparse
import copy
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn

from accel.zoo.blueprint import save_pipeline

if TYPE_CHECKING:
    from diffusers import DiffusionPipeline

PEAK_LR = {"muon": 2.5e-3, "adam": 1e-3}
WARMUP_STEPS = 60
DECAY_FROM = 0.4
EMA_DECAY = 0.998
GROUNDING_WEIGHT = 0.1
CHECKPOINT_S = 300
REPORT_STEPS = 50

_MATRIX = 2
_BLOCKS = ("transformer_blocks.", "transformer.blocks.")
# What checkpoints called their stages when there were only these two.
_OLD_STAGES = {True: "half", False: "full"}

log = logging.getLogger(__name__)


class Batch(Protocol):
    """Encoded samples with what a denoiser is told about them."""

    def __len__(self) -> int:
        """How many samples."""
        ...


B = TypeVar("B", bound=Batch)
B_co = TypeVar("B_co", bound=Batch, covariant=True)


class Pool(Protocol[B_co]):
    """Encoded samples that are drawn many times, while fresh ones come in."""

    def grow(self, count: int) -> None:
        """Make and encode `count` fresh samples."""
        ...

    def draw(self, count: int) -> B_co:
        """A random batch of about `count` samples."""
        ...


class Learner(nn.Module, ABC, Generic[B]):
    """The trained parts of a pipeline, together.

    `encoders` names those that only captions train; the denoiser's error leaves them as they are.
    """

    encoders: ClassVar[frozenset[str]] = frozenset()

    @abstractmethod
    def losses(self, batch: B) -> tuple[Tensor, Tensor]:
        """The denoiser's mean squared error, and the grounding of its middle (`grounding`)."""

    @abstractmethod
    def pipeline(self) -> "DiffusionPipeline":
        """The stock pipeline around the trained parts."""

    @abstractmethod
    def use_training_attention(self) -> None:
        """Give the denoiser attention whose backward pass is quick on a CPU."""

    @abstractmethod
    def compiled_blocks(self) -> Sequence[nn.Module]:
        """The blocks that are worth compiling, without those that are hooked in training.

        A hook that comes and goes would have them compiled anew.
        """

    def denoising_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """What is trained together with the denoiser, by name."""
        for name, weight in self.named_parameters():
            if name.partition(".")[0] not in self.encoders:
                yield name, weight

    @abstractmethod
    def read_captions(self, minutes: float) -> None:
        """Train the text encoders alone (`train_text`)."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of the training.

    `until` is the share of the time, 0..1, at which it ends; each step draws `batch` samples and
    makes `fresh` new ones, after the `first` ones.
    """

    name: str
    until: float
    batch: int
    fresh: int
    first: int


@contextmanager
def outputs_of(module: nn.Module, index: int | None = None) -> Iterator[list[Tensor]]:
    """Collect what `module` returns, or one element of it, while the context is open."""
    seen: list[Tensor] = []
    hook = module.register_forward_hook(
        lambda _module, _inputs, output: seen.append(output if index is None else output[index])
    )
    try:
        yield seen
    finally:
        hook.remove()


@contextmanager
def eager_unless(*, usual: bool) -> Iterator[None]:
    """Run compiled blocks as they are written, unless the shapes are the `usual` ones.

    Compiling for a shape that is rare takes longer than it saves.
    """
    with torch.compiler.set_stance("default" if usual else "force_eager"):
        yield


def optimizers(learner: Learner[Any]) -> dict[str, torch.optim.Optimizer]:
    """Muon for the matrices of transformer blocks, AdamW for everything else."""
    hidden: list[nn.Parameter] = []
    rest: list[nn.Parameter] = []
    for name, weight in learner.denoising_parameters():
        in_block = any(mark in name for mark in _BLOCKS) and "norm" not in name
        (hidden if in_block and weight.ndim == _MATRIX else rest).append(weight)
    return {
        "muon": torch.optim.Muon(
            hidden, lr=PEAK_LR["muon"], weight_decay=0.02, adjust_lr_fn="match_rms_adamw"
        ),
        "adam": torch.optim.AdamW(rest, lr=PEAK_LR["adam"], betas=(0.9, 0.98), weight_decay=0.01),
    }


@dataclass(slots=True)
class Run(Generic[B]):
    """A training run: what is learnt, how far it is, and where it is kept.

    `compiled` takes time at each stage's start to make its steps shorter.
    """

    name: str
    out: Path
    learner: Learner[B]
    compiled: bool = False
    ema: Learner[B] = field(init=False)
    optimizers: dict[str, torch.optim.Optimizer] = field(init=False)
    step: int = 0
    seconds: float = 0.0
    samples: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Copy the weights to be averaged, and continue from a checkpoint if there is one."""
        # Before the first checkpoint would have to, minutes later.
        self.out.mkdir(parents=True, exist_ok=True)
        self.ema = copy.deepcopy(self.learner)
        self.learner.use_training_attention()
        for block in self.learner.compiled_blocks() if self.compiled else ():
            block.compile(dynamic=False)
        self.optimizers = optimizers(self.learner)
        if self._checkpoint.exists():
            self._restore(torch.load(self._checkpoint, weights_only=True))

    @property
    def _checkpoint(self) -> Path:
        return self.out / "checkpoint.pt"

    def _restore(self, saved: dict[str, Any]) -> None:
        self.learner.load_state_dict(saved["learner"])
        self.ema.load_state_dict(saved["ema"])
        for name, optimizer in self.optimizers.items():
            optimizer.load_state_dict(saved["optimizers"][name])
        self.step, self.seconds = saved["step"], saved["seconds"]
        self.samples = {_OLD_STAGES.get(key, key): n for key, n in saved["samples"].items()}

    def save(self) -> Path:
        """Write the checkpoint, and the averaged weights into the pipeline folder it returns."""
        saved = {
            "learner": self.learner.state_dict(),
            "ema": self.ema.state_dict(),
            "optimizers": {name: o.state_dict() for name, o in self.optimizers.items()},
            "step": self.step,
            "seconds": self.seconds,
            "samples": self.samples,
        }
        unfinished = self._checkpoint.with_suffix(".part")
        torch.save(saved, unfinished)
        unfinished.replace(self._checkpoint)
        folder = self.out / self.name
        save_pipeline(self.ema.pipeline(), folder)
        return folder

    def read_captions(self, minutes: float) -> None:
        """Begin with the text encoders alone."""
        self.learner.read_captions(minutes)
        self.ema.load_state_dict(self.learner.state_dict())
        self.seconds += 60 * minutes

    def update(self, batch: B, stage: Stage, spent: float) -> tuple[float, float]:
        """Take one step; `spent` is the share of the time that has gone. Returns both losses."""
        warm = min(1.0, (self.step + 1) / WARMUP_STEPS)
        rate = warm * min(1.0, (1 - spent) / (1 - DECAY_FROM))
        for name, peak in PEAK_LR.items():
            for group in self.optimizers[name].param_groups:
                group["lr"] = peak * rate
        denoising, grounding = self.learner.losses(batch)
        self.learner.zero_grad()
        torch.autograd.backward(denoising + GROUNDING_WEIGHT * grounding)
        torch.nn.utils.clip_grad_norm_(self.learner.parameters(), 1.0)
        for optimizer in self.optimizers.values():
            optimizer.step()
        self._average()
        self.step += 1
        self.samples[stage.name] = self.samples.get(stage.name, 0) + len(batch)
        return denoising.item(), grounding.item()

    @torch.no_grad()
    def _average(self) -> None:
        decay = min(EMA_DECAY, (1 + self.step) / (10 + self.step))
        averaged: list[Tensor] = list(self.ema.parameters())
        current: list[Tensor] = list(self.learner.parameters())
        torch._foreach_lerp_(averaged, current, 1 - decay)


def train(
    run: Run[B],
    stages: Sequence[Stage],
    new_pool: Callable[[Stage, int], Pool[B]],
    minutes: float,
) -> Path:
    """Train until `minutes` of wall clock, over all resumed parts, are spent.

    `new_pool` makes the empty pool of a stage, from a seed. Returns the pipeline's folder.
    """
    with _coarse_products():
        return _train(run, stages, new_pool, 60 * minutes)


def _train(
    run: Run[B],
    stages: Sequence[Stage],
    new_pool: Callable[[Stage, int], Pool[B]],
    budget_s: float,
) -> Path:
    stage, pool = None, None
    losses: list[tuple[float, float]] = []
    clock = saved_at = time.monotonic()
    while run.seconds < budget_s:
        due = _stage_at(stages, run.seconds / budget_s)
        if pool is None or stage is not due:
            stage, pool = due, new_pool(due, run.step)
            pool.grow(due.first)
        pool.grow(due.fresh)
        loss = run.update(pool.draw(due.batch), due, run.seconds / budget_s)
        losses = [*losses[1 - REPORT_STEPS :], loss]
        now = time.monotonic()
        run.seconds += now - clock
        clock = now
        if run.step % REPORT_STEPS == 0 or run.step == 1:
            _report(run, losses, due)
        if now - saved_at > CHECKPOINT_S:
            run.save()
            saved_at = now
    return run.save()


@contextmanager
def _coarse_products() -> Iterator[None]:
    """Multiply what autocast leaves in fp32 with as few digits as the rest."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _stage_at(stages: Sequence[Stage], spent: float) -> Stage:
    return next((stage for stage in stages if spent < stage.until), stages[-1])


def _report(run: Run[B], losses: list[tuple[float, float]], stage: Stage) -> None:
    log.info(
        "step %d denoising %.4f grounding %.4f seconds %.0f samples %s %s",
        run.step,
        *(sum(column) / len(column) for column in zip(*losses, strict=True)),
        run.seconds,
        run.samples,
        stage.name,
    )


def training_options(
    description: str | None, text_minutes: float, half_share: float
) -> dict[str, Any]:
    """What the command line of a training says, as arguments of its `train_pipeline`."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--minutes", type=float, default=90.0)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--vae", type=Path, help="folder of a trained autoencoder")
    parser.add_argument("--start", type=Path, help="pipeline folder to go on from, no checkpoint")
    parser.add_argument(
        "--text-minutes", type=float, default=text_minutes, help="time on captions alone, first"
    )
    parser.add_argument(
        "--half-share", type=float, default=half_share, help="share of the time at half resolution"
    )
    parser.add_argument(
        "--compiled",
        action="store_true",
        help="compile the denoiser's blocks; needs a C++ compiler",
    )
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    return vars(options)
