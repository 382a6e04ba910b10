"""A growing pool of encoded training clips."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from accel.zoo.example_store import ExampleStore
from accel.zoo.grounding import (
    ITEM_CLASSES,
    WORD_CLASSES,
    item_answers,
    phrase_answers,
    place_answers,
    token_answers,
)
from accel.zoo.scenes import GROUNDS, SIDE_PX
from accel.zoo.video.blueprint import PATCH, TEXT_LENGTH, clip_tokens
from accel.zoo.video.clips import DIRECTIONS, MANNERS, Clip, Mover, random_clip, render_clip
from accel.zoo.video.train_vae import encode, halved

if TYPE_CHECKING:
    from diffusers import AutoencoderKLWan
    from transformers import PreTrainedTokenizerBase

DROPOUT = 0.1
CAPACITY = 4096
MOTION_CLASSES = (len(DIRECTIONS) + 1, len(MANNERS) + 1)
MOVER_CLASSES = (*ITEM_CLASSES, *MOTION_CLASSES)
CLIP_WORD_CLASSES = (*WORD_CLASSES, *MOTION_CLASSES)
RARE_LENGTHS = ((0.01, 512), (0.03, 64))


@dataclass(frozen=True, slots=True)
class ClipBatch:
    """Latents [B, 8, F, H, W] with token ids and their mask, [B, T].

    `answers` [B, N, 4] says what each video token shows: kind, colour, direction and manner.
    """

    latents: Tensor
    answers: Tensor
    ids: Tensor
    mask: Tensor

    def __len__(self) -> int:
        """How many clips."""
        return len(self.latents)


def motion_answers(mover: Mover) -> tuple[int, int]:
    """The classes of its direction and of its manner, from 1 on."""
    return 1 + DIRECTIONS.index(mover.direction), 1 + MANNERS.index(mover.manner)


def clip_word_answers(clip: Clip, length: int) -> Tensor:
    """[length, 7]: for each word what `word_answers` has, and its item's direction and manner."""
    ground = GROUNDS.index(clip.ground)
    rows = [
        (
            *item_answers(mover.item),
            *place_answers(mover.item, region),
            ground,
            *motion_answers(mover),
        )
        for mover, region in zip(clip.movers, clip.regions(), strict=True)
    ]
    phrases = [mover.phrase() for mover in clip.movers]
    none = (0, 0, 0, 0, ground, 0, 0)
    return phrase_answers(phrases, [none, *rows], clip.relation, length)


def video_token_answers(clip: Clip, owners: NDArray[np.uint8], *, half: bool) -> Tensor:
    """[N, 4]: for each video token the kind, colour, direction and manner of what it shows.

    `owners` is [F, 64, 64] as `render_clip` gives it; a latent frame shows the later of its two.
    """
    rows = [(*item_answers(mover.item), *motion_answers(mover)) for mover in clip.movers]
    latent_side = SIDE_PX // (4 if half else 2)
    grid = (latent_side // PATCH[1], latent_side // PATCH[2])
    return torch.cat([token_answers(rows, frame, grid) for frame in owners[::2]])


@dataclass(slots=True)
class ClipPool:
    """Clips of `frames` frames at full or half size, encoded once and drawn many times."""

    vae: "AutoencoderKLWan"
    frames: int
    half: bool
    seed: int
    _examples: ExampleStore = field(default_factory=lambda: ExampleStore(CAPACITY))
    _grammar: random.Random = field(init=False)
    _rng: np.random.Generator = field(init=False)
    _tokenizer: "PreTrainedTokenizerBase" = field(init=False)

    def __post_init__(self) -> None:
        """Seed both generators."""
        self._grammar = random.Random(self.seed)
        self._rng = np.random.default_rng(self.seed)
        self._tokenizer = clip_tokens()

    def grow(self, count: int) -> None:
        """Render and encode `count` fresh clips."""
        clips = [random_clip(self._grammar) for _ in range(count)]
        drawn = [render_clip(clip, self._rng, "train", self.frames) for clip in clips]
        videos = torch.from_numpy(np.stack([pixels for pixels, _ in drawn])).permute(0, 4, 1, 2, 3)
        answers = [
            video_token_answers(clip, owners, half=self.half)
            for clip, (_, owners) in zip(clips, drawn, strict=True)
        ]
        latents = encode(self.vae, halved(videos) if self.half else videos)
        ids, mask = self._encode([clip.caption() for clip in clips], TEXT_LENGTH)
        self._examples.add([latents.half(), answers, ids, mask])

    def draw(self, count: int) -> ClipBatch:
        """`count` random clips, one caption in ten emptied, rarely padded to more tokens."""
        chosen = self._rng.integers(len(self._examples), size=count)
        latents, answers, ids, mask = self._examples.take(chosen.tolist())
        dropped = torch.from_numpy(self._rng.random(count) < DROPOUT)
        ids[dropped], mask[dropped] = self._encode([""], TEXT_LENGTH)
        lot = self._rng.random()
        length = next((length for limit, length in RARE_LENGTHS if lot < limit), TEXT_LENGTH)
        ids, mask = (
            torch.nn.functional.pad(part, (0, length - TEXT_LENGTH)) for part in (ids, mask)
        )
        return ClipBatch(latents.float(), answers, ids, mask)

    def _encode(self, captions: Sequence[str], length: int) -> tuple[Tensor, Tensor]:
        encoded = self._tokenizer(
            list(captions), padding="max_length", max_length=length, return_tensors="pt"
        )
        return encoded.input_ids, encoded.attention_mask
