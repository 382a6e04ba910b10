"""Train a language model of the zoo on a CPU, resumably.

`python -m accel.zoo.language.train tiny-llada --minutes 75 --out FOLDER`

The same command goes on from the checkpoint in `--out`. It begins with short items and reaches
every size after a third of the time; tasks that go badly are drawn more often. Schedules run on
elapsed seconds, so training ends on time however busy the machine is.
"""

import argparse
import copy
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from accel.zoo.language.batches import Batch, Recipe, draw_pool
from accel.zoo.language.blueprint import SHAPES, Shape, new_model, save_model, shape_named
from accel.zoo.language.losses import DTYPE, Outcome, masked_loss
from accel.zoo.language.tasks import TASKS
from accel.zoo.language.vocabulary import language_tokenizer

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

PEAK_LR = {"muon": 4e-3, "adam": 3e-3}
WARMUP_STEPS = 100
DECAY_FROM = 0.4
REACHED_AT = 1 / 3
FIRST_REACH = 0.2
EMA_DECAY = 0.998
ERROR_DECAY = 0.98
LEAST_WEIGHT = 0.35
MATRIX = 2
CHECKPOINT_S = 300
REPORT_STEPS = 50

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How many items are drawn at a time, and how many tokens a step computes."""

    pool_items: int = 2048
    batch_tokens: int = 4096


@dataclass(slots=True)
class Run:
    """A training run: what is learnt, how far it is, and where it is kept."""

    out: Path
    name: str
    shape: Shape
    sizes: Sizes = field(default_factory=Sizes)
    dtype: torch.dtype = DTYPE
    model: "LlamaForCausalLM" = field(init=False)
    ema: "LlamaForCausalLM" = field(init=False)
    tokenizer: "PreTrainedTokenizerFast" = field(init=False)
    optimizers: dict[str, torch.optim.Optimizer] = field(init=False)
    step: int = 0
    seconds: float = 0.0
    tokens: int = 0
    errors: dict[str, float] = field(default_factory=lambda: dict.fromkeys(TASKS, 1.0))
    recipe: Recipe | None = None
    pool: list[Batch] = field(default_factory=list)
    taken: int = 0
    pools: int = 0

    def __post_init__(self) -> None:
        """Build the model, and continue from a checkpoint if there is one."""
        self.model = new_model(self.shape).train()
        self.ema = copy.deepcopy(self.model)
        self.tokenizer = language_tokenizer()
        self.optimizers = optimizers(self.model)
        if self.checkpoint.exists():
            self._restore(torch.load(self.checkpoint, weights_only=True))

    @property
    def checkpoint(self) -> Path:
        """Where the run is kept."""
        return self.out / "checkpoint.pt"

    def _restore(self, saved: dict[str, Any]) -> None:
        self.model.load_state_dict(saved["model"])
        self.ema.load_state_dict(saved["ema"])
        for name, optimizer in self.optimizers.items():
            optimizer.load_state_dict(saved["optimizers"][name])
        for name in ("step", "seconds", "tokens", "errors", "taken", "pools"):
            setattr(self, name, saved[name])
        if saved["recipe"] is not None:
            # A pool is drawn again rather than kept: its recipe is a few numbers.
            self.recipe = Recipe(**saved["recipe"])
            self.pool = draw_pool(self.recipe, self.tokenizer)

    def save(self) -> None:
        """Write the checkpoint, and the averaged weights as a model folder."""
        saved = {
            "model": self.model.state_dict(),
            "ema": self.ema.state_dict(),
            "optimizers": {name: o.state_dict() for name, o in self.optimizers.items()},
            "recipe": None if self.recipe is None else asdict(self.recipe),
            **{
                name: getattr(self, name)
                for name in ("step", "seconds", "tokens", "errors", "taken", "pools")
            },
        }
        unfinished = self.checkpoint.with_suffix(".part")
        torch.save(saved, unfinished)
        unfinished.replace(self.checkpoint)
        save_model(self.out / self.name, self.ema)

    def advance(self, spent: float) -> float:
        """Take one step; `spent` is the share of the time that has gone. Returns the loss."""
        batch = self._next_batch(spent)
        self._set_rates(spent)
        # Noise depends on nothing but the step, so that a resumed run draws the same.
        generator = torch.Generator().manual_seed(self.step)
        outcome = masked_loss(self.model, batch, generator, self.dtype)
        self.model.zero_grad()
        torch.autograd.backward(outcome.loss)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers.values():
            optimizer.step()
        self._average()
        self._note_errors(outcome)
        self.step += 1
        self.tokens += batch.canvas.numel()
        return outcome.loss.item()

    def _next_batch(self, spent: float) -> Batch:
        if self.taken == len(self.pool):
            self.recipe = Recipe(
                f"{self.name} {self.pools}",
                task_weights(self.errors),
                min(1.0, FIRST_REACH + (1 - FIRST_REACH) * spent / REACHED_AT),
                self.sizes.pool_items,
                self.sizes.batch_tokens,
            )
            self.pool = draw_pool(self.recipe, self.tokenizer)
            self.pools, self.taken = self.pools + 1, 0
        self.taken += 1
        return self.pool[self.taken - 1]

    def _set_rates(self, spent: float) -> None:
        warm = min(1.0, (self.step + 1) / WARMUP_STEPS)
        rate = warm * min(1.0, (1 - spent) / (1 - DECAY_FROM))
        for name, peak in PEAK_LR.items():
            for group in self.optimizers[name].param_groups:
                group["lr"] = peak * rate

    @torch.no_grad()
    def _average(self) -> None:
        decay = min(EMA_DECAY, (1 + self.step) / (10 + self.step))
        averaged: list[Tensor] = list(self.ema.parameters())
        current: list[Tensor] = list(self.model.parameters())
        torch._foreach_lerp_(averaged, current, 1 - decay)

    def _note_errors(self, outcome: Outcome) -> None:
        counts = zip(TASKS, outcome.guessed.tolist(), outcome.wrong.tolist(), strict=True)
        for name, guessed, wrong in counts:
            if guessed:
                kept = ERROR_DECAY * self.errors[name]
                self.errors[name] = kept + (1 - ERROR_DECAY) * wrong / guessed


def optimizers(model: nn.Module) -> dict[str, torch.optim.Optimizer]:
    """Muon for the layers' matrices, AdamW for everything else."""
    hidden: list[nn.Parameter] = []
    rest: list[nn.Parameter] = []
    for name, weight in model.named_parameters():
        in_layer = ".layers." in name and weight.ndim == MATRIX
        (hidden if in_layer else rest).append(weight)
    return {
        "muon": torch.optim.Muon(
            hidden, lr=PEAK_LR["muon"], weight_decay=0.02, adjust_lr_fn="match_rms_adamw"
        ),
        "adam": torch.optim.AdamW(rest, lr=PEAK_LR["adam"], betas=(0.9, 0.98), weight_decay=0.01),
    }


def task_weights(errors: dict[str, float]) -> dict[str, float]:
    """How often each task is drawn: more often the more of its tokens are wrong.

    Tasks with several right answers keep the least weight: their errors do not go away.
    """
    able = {name: error for name, error in errors.items() if TASKS[name].parallel_safe}
    mean = max(sum(able.values()) / len(able), 1e-6)
    return {name: LEAST_WEIGHT + able.get(name, 0.0) / mean for name in TASKS}


def train(run: Run, minutes: float, clock: Callable[[], float] = time.monotonic) -> None:
    """Train until `minutes` of `clock`, over all resumed parts, are spent, then save."""
    budget_s = 60 * minutes
    losses: list[float] = []
    saved_at = run.seconds
    for passed in _seconds(clock):
        run.seconds += passed
        if run.seconds >= budget_s:
            break
        if run.seconds - saved_at > CHECKPOINT_S:
            run.save()
            saved_at = run.seconds
        losses = [*losses[1 - REPORT_STEPS :], run.advance(run.seconds / budget_s)]
        if run.step % REPORT_STEPS == 0 or run.step == 1:
            _report(run, losses)
    run.save()


def _seconds(clock: Callable[[], float]) -> Iterator[float]:
    """How many passed since the last time, for ever."""
    before = clock()
    while True:
        now = clock()
        yield now - before
        before = now


def _report(run: Run, losses: list[float]) -> None:
    log.info(
        "step %d loss %.4f seconds %.0f tokens %d wrong %s",
        run.step,
        sum(losses) / len(losses),
        run.seconds,
        run.tokens,
        " ".join(f"{name} {error:.3f}" for name, error in run.errors.items()),
    )


def main() -> None:
    """Train or continue, and leave a model folder in `--out`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=list(SHAPES))
    parser.add_argument("--minutes", type=float, default=75.0)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    options.out.mkdir(parents=True, exist_ok=True)
    train(Run(options.out, options.name, shape_named(options.name)), options.minutes)


if __name__ == "__main__":
    main()
