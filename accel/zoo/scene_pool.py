"""A growing pool of encoded training scenes."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from accel.zoo.example_store import ExampleStore
from accel.zoo.grounding import item_answers, token_answers
from accel.zoo.scenes import random_scene, render_owned
from accel.zoo.train_text import LONG, text_length
from accel.zoo.train_vae import encode, halved
from accel.zoo.training import Stage
from accel.zoo.vocabulary import CLIP_LENGTH, T5_LENGTH, clip_tokenizer, t5_tokenizer

if TYPE_CHECKING:
    from diffusers import AutoencoderKL
    from transformers import PreTrainedTokenizerBase

DROPOUT = 0.1
SIDE_TOKENS = 16
CAPACITY = 65_536


@dataclass(frozen=True, slots=True)
class SceneBatch:
    """Latents [B, 4, H, W] with the token ids of both encoders, [B, 32] and [B, T].

    `answers` [B, N, 2] says what each picture token shows, see `token_answers`.
    """

    latents: Tensor
    answers: Tensor
    clip_ids: Tensor
    t5_ids: Tensor

    def __len__(self) -> int:
        """How many scenes."""
        return len(self.latents)


@dataclass(slots=True)
class ScenePool:
    """Scenes at full or half resolution, encoded once and drawn many times.

    `half` renders at 32 px instead of 64. `varied_text` pads some batches to more T5 tokens than
    the usual 24, since users do; those that are four times as long are four times as small.
    """

    vae: "AutoencoderKL"
    half: bool
    seed: int
    varied_text: bool = False
    _examples: ExampleStore = field(default_factory=lambda: ExampleStore(CAPACITY))
    _grammar: random.Random = field(init=False)
    _rng: np.random.Generator = field(init=False)
    _tokenizers: "tuple[PreTrainedTokenizerBase, PreTrainedTokenizerBase]" = field(init=False)

    def __post_init__(self) -> None:
        """Seed both generators."""
        self._grammar = random.Random(self.seed)
        self._rng = np.random.default_rng(self.seed)
        self._tokenizers = (clip_tokenizer(), t5_tokenizer())

    def grow(self, count: int) -> None:
        """Render and encode `count` fresh scenes."""
        scenes = [random_scene(self._grammar) for _ in range(count)]
        drawn = [render_owned(scene, self._rng) for scene in scenes]
        images = torch.from_numpy(np.stack([picture for picture, _ in drawn])).permute(0, 3, 1, 2)
        side = SIDE_TOKENS // 2 if self.half else SIDE_TOKENS
        answers = [
            token_answers([*map(item_answers, scene.items)], owners, (side, side))
            for scene, (_, owners) in zip(scenes, drawn, strict=True)
        ]
        latents = encode(self.vae, halved(images) if self.half else images)
        captions = [scene.caption() for scene in scenes]
        ids = [self._encode(0, captions, CLIP_LENGTH), self._encode(1, captions, T5_LENGTH)]
        self._examples.add([latents.half(), answers, *ids])

    def draw(self, count: int) -> SceneBatch:
        """About `count` random scenes, one caption in ten emptied."""
        length = text_length(self._rng.random()) if self.varied_text else T5_LENGTH
        count = count // 4 if length >= LONG else count
        chosen = self._rng.integers(len(self._examples), size=count)
        latents, answers, clip_ids, t5_ids = self._examples.take(chosen.tolist())
        dropped = torch.from_numpy(self._rng.random(count) < DROPOUT)
        clip_ids[dropped] = self._encode(0, [""], CLIP_LENGTH)
        t5_ids[dropped] = self._encode(1, [""], T5_LENGTH)
        padding = (0, length - T5_LENGTH)
        padded = torch.nn.functional.pad(t5_ids, padding, value=0)
        return SceneBatch(latents.float(), answers, clip_ids, padded)

    def _encode(self, which: int, captions: Sequence[str], length: int) -> Tensor:
        ids: Tensor = self._tokenizers[which](
            list(captions),
            padding="max_length",
            max_length=length,
            truncation=True,
            return_tensors="pt",
        ).input_ids
        return ids


def scene_stages(half_share: float) -> tuple[Stage, Stage]:
    """Half resolution for `half_share` of the time, then full resolution."""
    return (
        Stage("half", half_share, batch=64, fresh=24, first=4096),
        Stage("full", 1.0, batch=32, fresh=12, first=1536),
    )
