"""Whether pictures still show what the prompt asked for, found by the zoo's judge."""

from dataclasses import replace
from typing import Any

import torch

import accel
import accel.zoo
from accel.zoo.judge import Judge
from accel.zoo.scenes import sample_scenes
from caching import FirstBlockCache
from tests.benchmarks.peers import Accel, Contender

_BATCH = 16
_FIRST_SEED = 5000


class Adherence:
    """Judges what a method makes of held-out prompts, in bf16 and in batches, to afford many."""

    def __init__(self, model: str, count: int, steps: int, device: str) -> None:
        self.scenes = list(sample_scenes(count, "held_out")) if count else []
        self.call = {**accel.zoo.card(model).call, "num_inference_steps": steps}
        if self.scenes:
            self.pipe = accel.zoo.load(model, torch_dtype=torch.bfloat16).to(device)
            self.pipe.set_progress_bar_config(disable=True)
            self.judge = Judge.load()

    def of(self, side: Contender | None) -> dict[str, float]:
        """Shares of items of the right kind and colour; empty where the judge is not asked.

        None is the unaccelerated pipeline. Peers are not judged: at equal settings they make the
        same pictures. The mean over the batch decides, which is nearest to single pictures.
        """
        if not self.scenes or not (side is None or isinstance(side, Accel)):
            return {}
        if side is None:
            return self._score()
        method = side.method
        if isinstance(method, FirstBlockCache):
            method = replace(method, batch="mean")
        with accel.patch(self.pipe, method):
            return self._score()

    def _score(self) -> dict[str, float]:
        images = torch.cat([self._images(start) for start in range(0, len(self.scenes), _BATCH)])
        found = self.judge.score(images.float().cpu(), self.scenes)
        return {"kind": found.kind_accuracy, "colour": found.colour_accuracy}

    def _images(self, start: int) -> Any:
        scenes = self.scenes[start : start + _BATCH]
        seeds = range(_FIRST_SEED + start, _FIRST_SEED + start + len(scenes))
        call = dict(self.call)
        if "negative_prompt" in call:
            call["negative_prompt"] = [call["negative_prompt"]] * len(scenes)
        made = self.pipe(
            prompt=[scene.caption() for scene in scenes],
            generator=[torch.Generator().manual_seed(seed) for seed in seeds],
            output_type="pt",
            **call,
        )
        return made.images
