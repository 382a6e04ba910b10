"""What the zoo offers for its language models."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from accel.zoo.language.tasks import TASKS, Split, sample_items

if TYPE_CHECKING:
    from accel.zoo.language.loading import LanguageModel


@dataclass(frozen=True, slots=True)
class LanguageFamily:
    """The zoo's `Family` of one language model."""

    name: str

    PUBLISHER = "accel.zoo.language.publish"

    def load(self, folder: Path, torch_dtype: torch.dtype) -> "LanguageModel":
        """The model in `folder` with its tokenizer, on the CPU."""
        from accel.zoo.language.loading import load_language

        return load_language(folder, torch_dtype)

    def prompts(self, count: int, split: Split) -> list[str]:
        """Prompts of a fixed list of items; ValueError if there are not so many."""
        return [item.prompt for item in sample_items(count, split)]

    def reads(self) -> str:
        """The tasks that the model learnt."""
        return f"printable ASCII; the tasks {', '.join(TASKS)}"

    def evaluate(self, count: int | None, out: Path, only: list[str] | None) -> Path:
        """Measure the model; returns the record."""
        from accel.zoo.language import evaluate

        return evaluate.run(self.name, count, out, only)

    def train(self, minutes: float, out: Path) -> Path:
        """Train anew or go on; returns the model's folder."""
        from accel.zoo.language.blueprint import shape_named
        from accel.zoo.language.train import Run, train

        train(Run(out, self.name, shape_named(self.name)), minutes)
        return out / self.name


LLADA, SDAR, DREAM = map(LanguageFamily, ("tiny-llada", "tiny-sdar", "tiny-dream"))
