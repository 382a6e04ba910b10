"""A growing pool of encoded training scenes."""

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from accel.zoo.grounding import token_answers
from accel.zoo.scenes import random_scene, render_owned
from accel.zoo.train_vae import encode, halved
from accel.zoo.vocabulary import CLIP_LENGTH, T5_LENGTH, clip_tokenizer, t5_tokenizer

if TYPE_CHECKING:
    from diffusers import AutoencoderKL
    from transformers import PreTrainedTokenizerBase

DROPOUT = 0.1
SIDE_TOKENS = 16


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """Packed latents [B, N, 16] with the token ids of both encoders, [B, 32] and [B, T].

    `answers` [B, N, 2] says what each picture token shows, see `token_answers`.
    """

    latents: Tensor
    answers: Tensor
    clip_ids: Tensor
    t5_ids: Tensor


def pack(latents: Tensor) -> Tensor:
    """[B, 4, H, W] to [B, H/2 * W/2, 16], in the order of `FluxPipeline._pack_latents`."""
    batch, channels, height, width = latents.shape
    patches = latents.reshape(batch, channels, height // 2, 2, width // 2, 2)
    return patches.permute(0, 2, 4, 1, 3, 5).reshape(batch, -1, channels * 4)


@dataclass(slots=True)
class LatentPool:
    """Scenes at full or half resolution, encoded once and drawn many times.

    `half` renders at 32 px instead of 64. The oldest scenes are replaced beyond `capacity`.
    """

    vae: "AutoencoderKL"
    half: bool
    seed: int
    capacity: int = 65_536
    _latents: list[Tensor] = field(default_factory=list)
    _answers: list[Tensor] = field(default_factory=list)
    _clip_ids: list[Tensor] = field(default_factory=list)
    _t5_ids: list[Tensor] = field(default_factory=list)
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
        self._answers.extend(
            token_answers(scene, owners, side)
            for scene, (_, owners) in zip(scenes, drawn, strict=True)
        )
        latents = encode(self.vae, halved(images) if self.half else images)
        captions = [scene.caption() for scene in scenes]
        self._latents.extend(pack(latents).half())
        self._clip_ids.extend(self._encode(0, captions, CLIP_LENGTH))
        self._t5_ids.extend(self._encode(1, captions, T5_LENGTH))
        for column in (self._latents, self._answers, self._clip_ids, self._t5_ids):
            del column[: max(0, len(column) - self.capacity)]

    def draw(self, batch: int, text_length: int) -> TokenBatch:
        """`batch` random scenes, T5 ids padded to `text_length`, one caption in ten emptied."""
        chosen = self._rng.integers(len(self._latents), size=batch)
        clip_ids = torch.stack([self._clip_ids[i] for i in chosen])
        t5_ids = torch.stack([self._t5_ids[i] for i in chosen])
        dropped = torch.from_numpy(self._rng.random(batch) < DROPOUT)
        clip_ids[dropped] = self._encode(0, [""], CLIP_LENGTH)
        t5_ids[dropped] = self._encode(1, [""], T5_LENGTH)
        padding = (0, text_length - T5_LENGTH)
        return TokenBatch(
            torch.stack([self._latents[i] for i in chosen]).float(),
            torch.stack([self._answers[i] for i in chosen]),
            clip_ids,
            torch.nn.functional.pad(t5_ids, padding, value=0),
        )

    def _encode(self, which: int, captions: list[str], length: int) -> Tensor:
        ids: Tensor = self._tokenizers[which](
            captions, padding="max_length", max_length=length, truncation=True, return_tensors="pt"
        ).input_ids
        return ids
