"""Teach the zoo's text encoders what captions say, from captions alone.

Every token has to tell its item's kind, colour, size and place, and CLIP's pooled output what lies
where. Minutes of this spare the denoiser hours of learning it through pictures. They are frozen
then, as in the models whose shape they have: the denoiser's error would wash it out again.
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
    CAPTION_CLASSES,
    WORD_CLASSES,
    Reader,
    caption_answers,
    early_word_answers,
    word_answers,
)
from accel.zoo.vocabulary import CLIP_LENGTH, T5_LENGTH, clip_tokenizer, t5_tokenizer

if TYPE_CHECKING:
    from transformers import CLIPTextModel, PreTrainedTokenizerBase, T5EncoderModel

BATCH = 128
PEAK_LR = 1.5e-3
BIAS_LR = 5e-2
REPORT_STEPS = 100
LONG = 128
RARE_LENGTHS = ((0.01, 512), (0.02, LONG), (0.035, 64), (0.05, 48))

log = logging.getLogger(__name__)


class Described(Protocol):
    """Something with a caption: a scene or a clip."""

    def caption(self) -> str:
        """The prompt."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """What one encoder is asked about captions.

    Attributes:
        name: For the log.
        encoder: What is taught.
        tokenizer: Its tokenizer.
        length: To how many tokens captions are padded.
        stretches: Whether padding reaches the hidden states, and has to be met in all lengths.
        classes: How many answers there are to each question.
        read: Hidden states of token ids and their mask.
        answers: The right answers about one scene, given where each word ends in its tokens, and
            how many tokens there are.
    """

    name: str
    encoder: Any
    tokenizer: "PreTrainedTokenizerBase"
    length: int
    stretches: bool = False
    classes: tuple[int, ...]
    read: Callable[[Tensor, Tensor], Tensor]
    answers: Callable[[Any, Sequence[int], int], Tensor]

    def loss(self, reader: Reader, scenes: Sequence[Described], padding: int) -> Tensor:
        """The cross entropy of the answers that `reader` reads off."""
        captions = [scene.caption() for scene in scenes]
        length = self.length + padding * self.stretches
        encoded = self.tokenizer(
            captions,
            padding="max_length",
            max_length=length,
            return_offsets_mapping=True,
            return_tensors="pt",
        )
        with torch.autocast("cpu", torch.bfloat16):
            hidden = self.read(encoded.input_ids, encoded.attention_mask)
        ends = map(word_ends, captions, encoded.offset_mapping.tolist())
        answers = [
            self.answers(scene, each, length) for scene, each in zip(scenes, ends, strict=True)
        ]
        return reader.loss(hidden, torch.stack(answers))


def text_length(draw: float) -> int:
    """How many T5 tokens a batch has: 24, rarely more; `draw` is uniform in 0..1."""
    return next((length for limit, length in RARE_LENGTHS if draw < limit), T5_LENGTH)


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
        name="captions",
        encoder=clip,
        tokenizer=clip_tokenizer(),
        length=CLIP_LENGTH,
        classes=CAPTION_CLASSES,
        read=lambda ids, _mask: clip(ids).pooler_output,
        answers=lambda scene, _ends, _length: caption_answers(scene),
    )


def early_lesson(clip: "CLIPTextModel") -> Lesson:
    """CLIP's tokens tell each item as soon as the caption has said everything about it."""
    return Lesson(
        name="items",
        encoder=clip,
        tokenizer=clip_tokenizer(),
        length=CLIP_LENGTH,
        classes=WORD_CLASSES,
        read=lambda ids, _mask: clip(ids)[0],
        answers=early_word_answers,
    )


def words_lesson(t5: "T5EncoderModel") -> Lesson:
    """T5's tokens each tell the item that they belong to, and all of them the ground."""
    return Lesson(
        name="words",
        encoder=t5,
        tokenizer=t5_tokenizer(),
        length=T5_LENGTH,
        stretches=True,
        classes=WORD_CLASSES,
        read=lambda ids, _mask: t5(ids)[0],
        answers=lambda scene, _ends, length: word_answers(scene, length),
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
    for lesson in lessons:
        # The backward pass of fused attention is slow on CPUs.
        lesson.encoder.set_attn_implementation("eager")
    grammar = random.Random(seed)
    readers = [Reader(TEXT_DIM, lesson.classes) for lesson in lessons]
    optimizer = _optimizer([*(lesson.encoder for lesson in lessons), *readers])
    started, step, spent = time.monotonic(), 0, 0.0
    while spent < 1.0:
        for group in optimizer.param_groups:
            group["lr"] = group["peak_lr"] * (1 - spent)
        length = text_length(grammar.random())
        drawn = [scenes(grammar) for _ in range(BATCH // (8 if length >= LONG else 1))]
        losses = [
            lesson.loss(reader, drawn, length - T5_LENGTH)
            for lesson, reader in zip(lessons, readers, strict=True)
        ]
        optimizer.zero_grad()
        torch.autograd.backward(torch.stack(losses).sum())
        optimizer.step()
        if step % REPORT_STEPS == 0:
            pairs = zip(lessons, losses, strict=True)
            told = [f"{lesson.name} {loss.item():.3f}" for lesson, loss in pairs]
            log.info("text step %d: %s", step, " ".join(told))
        step += 1
        spent = (time.monotonic() - started) / (60 * minutes)
    for lesson in lessons:
        lesson.encoder.set_attn_implementation("sdpa")


def _optimizer(parts: Sequence[nn.Module]) -> torch.optim.Optimizer:
    """AdamW; T5's position biases move faster, since they decide alone what comes before what."""
    named = dict(nn.ModuleList(parts).named_parameters())
    biases = [weight for name, weight in named.items() if "relative_attention_bias" in name]
    others = [weight for name, weight in named.items() if "relative_attention_bias" not in name]
    groups = [
        {"params": others, "peak_lr": PEAK_LR, "weight_decay": 0.01},
        {"params": biases, "peak_lr": BIAS_LR, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([group for group in groups if group["params"]], betas=(0.9, 0.98))
