"""Teach the zoo's text encoders what captions say, from captions alone.

Every token has to tell its item's kind, colour, size and place, and CLIP's pooled output what lies
where. Minutes of this spare the denoiser hours of learning it through pictures.
"""

import logging
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from accel.zoo.blueprint import TEXT_DIM
from accel.zoo.grounding import (
    REGION_CLASSES,
    WORD_CLASSES,
    Reader,
    early_word_answers,
    region_answers,
    word_answers,
)
from accel.zoo.vocabulary import CLIP_LENGTH, T5_LENGTH, clip_tokenizer, t5_tokenizer

if TYPE_CHECKING:
    from transformers import CLIPTextModel, PreTrainedTokenizerBase, T5EncoderModel

BATCH = 256
PEAK_LR = 1e-3
REPORT_STEPS = 100

log = logging.getLogger(__name__)


class Described(Protocol):
    """Something with a caption: a scene or a clip."""

    def caption(self) -> str:
        """The prompt."""
        ...


@dataclass(frozen=True, slots=True)
class Lesson:
    """What one encoder is asked about captions.

    `read` gives hidden states of token ids and their mask, `answers` the right answers about one
    scene, given where each word ends in its tokens.
    """

    name: str
    encoder: nn.Module
    tokenizer: "PreTrainedTokenizerBase"
    length: int
    classes: tuple[int, ...]
    read: Callable[[Tensor, Tensor], Tensor]
    answers: Callable[[Any, Sequence[int]], Tensor]

    def loss(self, reader: Reader, scenes: Sequence[Described]) -> Tensor:
        """The cross entropy of the answers that `reader` reads off."""
        captions = [scene.caption() for scene in scenes]
        encoded = self.tokenizer(
            captions,
            padding="max_length",
            max_length=self.length,
            return_offsets_mapping=True,
            return_tensors="pt",
        )
        with torch.autocast("cpu", torch.bfloat16):
            hidden = self.read(encoded.input_ids, encoded.attention_mask)
        ends = map(word_ends, captions, encoded.offset_mapping.tolist())
        return reader.loss(hidden, torch.stack([*map(self.answers, scenes, ends)]))


def word_ends(caption: str, offsets: Sequence[tuple[int, int]]) -> list[int]:
    """For every word the position of its last token; `offsets` are the tokens' in the caption."""
    token_at = {end: position for position, (start, end) in enumerate(offsets) if end > start}
    words, ends, end = caption.split(), [], -1
    for word in words:
        end += 1 + len(word)
        ends.append(token_at[end])
    return ends


def pooled_lesson(clip: "CLIPTextModel") -> Lesson:
    """CLIP's pooled output tells what lies in each region."""
    return Lesson(
        "regions",
        clip,
        clip_tokenizer(),
        CLIP_LENGTH,
        REGION_CLASSES,
        lambda ids, _mask: clip(ids).pooler_output,
        lambda scene, _ends: region_answers(scene),
    )


def early_lesson(clip: "CLIPTextModel") -> Lesson:
    """CLIP's tokens tell each item as soon as the caption has said everything about it."""
    return Lesson(
        "items",
        clip,
        clip_tokenizer(),
        CLIP_LENGTH,
        WORD_CLASSES,
        lambda ids, _mask: clip(ids)[0],
        lambda scene, ends: early_word_answers(scene, ends, CLIP_LENGTH),
    )


def words_lesson(t5: "T5EncoderModel") -> Lesson:
    """T5's tokens each tell the item that they belong to."""
    return Lesson(
        "words",
        t5,
        t5_tokenizer(),
        T5_LENGTH,
        WORD_CLASSES,
        lambda ids, _mask: t5(ids)[0],
        lambda scene, _ends: word_answers(scene, T5_LENGTH),
    )


def train_text(
    lessons: Sequence[Lesson],
    scenes: Callable[[random.Random], Described],
    minutes: float,
    seed: int = 0,
) -> None:
    """Train the encoders in place for `minutes`, the learning rate falling to zero.

    `scenes` draws a scene of the training split.
    """
    grammar = random.Random(seed)
    readers = [Reader(TEXT_DIM, lesson.classes) for lesson in lessons]
    parts = nn.ModuleList([*(lesson.encoder for lesson in lessons), *readers])
    optimizer = torch.optim.AdamW(
        parts.parameters(), lr=PEAK_LR, betas=(0.9, 0.98), weight_decay=0.01
    )
    started, step, spent = time.monotonic(), 0, 0.0
    while spent < 1.0:
        for group in optimizer.param_groups:
            group["lr"] = PEAK_LR * (1 - spent)
        drawn = [scenes(grammar) for _ in range(BATCH)]
        losses = [
            lesson.loss(reader, drawn) for lesson, reader in zip(lessons, readers, strict=True)
        ]
        optimizer.zero_grad()
        torch.autograd.backward(torch.stack(losses).sum())
        optimizer.step()
        if step % REPORT_STEPS == 0:
            told = (
                f"{part.name} {loss.item():.3f}" for part, loss in zip(lessons, losses, strict=True)
            )
            log.info("text step %d: %s", step, " ".join(told))
        step += 1
        spent = (time.monotonic() - started) / (60 * minutes)
