"""Teach the zoo's text encoders what captions say, from captions alone.

Every T5 token has to tell its item's kind, colour, size and place; CLIP's pooled output has to
tell what lies where. Minutes of this spare the denoiser hours of learning it through pictures.
Both are frozen then, as in the models whose shape they have: the velocity's error would wash it out
again.
"""

import logging
import random
import time
from typing import TYPE_CHECKING

import torch
from torch import nn

from accel.zoo.blueprint import TEXT_DIM
from accel.zoo.grounding import (
    CAPTION_CLASSES,
    WORD_CLASSES,
    Reader,
    caption_answers,
    word_answers,
)
from accel.zoo.scenes import random_scene
from accel.zoo.vocabulary import CLIP_LENGTH, T5_LENGTH, clip_tokenizer, t5_tokenizer

if TYPE_CHECKING:
    from transformers import CLIPTextModel, T5EncoderModel

BATCH = 128
PEAK_LR = 1.5e-3
BIAS_LR = 5e-2
REPORT_STEPS = 100
LONG = 128
RARE_LENGTHS = ((0.01, 512), (0.02, 128), (0.035, 64), (0.05, 48))

log = logging.getLogger(__name__)


def text_length(draw: float) -> int:
    """How many T5 tokens a batch has: 24, rarely more; `draw` is uniform in 0..1."""
    return next((length for limit, length in RARE_LENGTHS if draw < limit), T5_LENGTH)


def _optimizer(*parts: nn.Module) -> torch.optim.Optimizer:
    """AdamW; T5's position biases move faster, since they decide alone what comes before what."""
    named = [pair for part in parts for pair in part.named_parameters()]
    biases = [weight for name, weight in named if "relative_attention_bias" in name]
    others = [weight for name, weight in named if "relative_attention_bias" not in name]
    groups = [
        {"params": others, "peak_lr": PEAK_LR, "weight_decay": 0.01},
        {"params": biases, "peak_lr": BIAS_LR, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, betas=(0.9, 0.98))


def train_text(clip: "CLIPTextModel", t5: "T5EncoderModel", minutes: float, seed: int = 0) -> None:
    """Train both in place for `minutes` of wall clock, the learning rate falling to zero."""
    for encoder in (clip, t5):
        # The backward pass of fused attention is slow on CPUs.
        encoder.set_attn_implementation("eager")
    grammar = random.Random(seed)
    tokenizers = (clip_tokenizer(), t5_tokenizer())
    readers = (Reader(TEXT_DIM, CAPTION_CLASSES), Reader(TEXT_DIM, WORD_CLASSES))
    optimizer = _optimizer(clip, t5, *readers)
    started, step, spent = time.monotonic(), 0, 0.0
    while spent < 1.0:
        for group in optimizer.param_groups:
            group["lr"] = group["peak_lr"] * (1 - spent)
        length = text_length(grammar.random())
        scenes = [random_scene(grammar) for _ in range(BATCH // (8 if length >= LONG else 1))]
        captions = [scene.caption() for scene in scenes]
        ids = [
            tokenizer(
                captions, padding="max_length", max_length=width, return_tensors="pt"
            ).input_ids
            for tokenizer, width in zip(tokenizers, (CLIP_LENGTH, length), strict=True)
        ]
        with torch.autocast("cpu", torch.bfloat16):
            pooled, hidden = clip(ids[0]).pooler_output, t5(ids[1])[0]
        whole = readers[0].loss(pooled, torch.stack([caption_answers(scene) for scene in scenes]))
        words = torch.stack([word_answers(scene, length) for scene in scenes])
        each = readers[1].loss(hidden, words)
        optimizer.zero_grad()
        torch.autograd.backward(whole + each)
        optimizer.step()
        if step % REPORT_STEPS == 0:
            log.info("text step %d: captions %.3f words %.3f", step, whole.item(), each.item())
        step += 1
        spent = (time.monotonic() - started) / (60 * minutes)
    for encoder in (clip, t5):
        encoder.set_attn_implementation("sdpa")
