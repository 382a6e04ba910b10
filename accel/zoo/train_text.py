"""Teach the zoo's text encoders what captions say, from captions alone.

Every T5 token has to tell its item's kind, colour, size and place; CLIP's pooled output has to
tell what lies where. Minutes of this spare the denoiser hours of learning it through pictures.
"""

import logging
import random
import time
from typing import TYPE_CHECKING

import torch

from accel.zoo.blueprint import TEXT_DIM
from accel.zoo.grounding import (
    ITEM_CLASSES,
    REGIONS,
    WORD_CLASSES,
    Reader,
    region_answers,
    word_answers,
)
from accel.zoo.scenes import random_scene
from accel.zoo.vocabulary import CLIP_LENGTH, T5_LENGTH, clip_tokenizer, t5_tokenizer

if TYPE_CHECKING:
    from transformers import CLIPTextModel, T5EncoderModel

BATCH = 256
PEAK_LR = 1e-3
REPORT_STEPS = 100

log = logging.getLogger(__name__)


def train_text(clip: "CLIPTextModel", t5: "T5EncoderModel", minutes: float, seed: int = 0) -> None:
    """Train both in place for `minutes` of wall clock, the learning rate falling to zero."""
    grammar = random.Random(seed)
    tokenizers = (clip_tokenizer(), t5_tokenizer())
    readers = (Reader(TEXT_DIM, ITEM_CLASSES * len(REGIONS)), Reader(TEXT_DIM, WORD_CLASSES))
    weights = [w for part in (clip, t5, *readers) for w in part.parameters()]
    optimizer = torch.optim.AdamW(weights, lr=PEAK_LR, betas=(0.9, 0.98), weight_decay=0.01)
    started, step, spent = time.monotonic(), 0, 0.0
    while spent < 1.0:
        for group in optimizer.param_groups:
            group["lr"] = PEAK_LR * (1 - spent)
        scenes = [random_scene(grammar) for _ in range(BATCH)]
        captions = [scene.caption() for scene in scenes]
        ids = [
            tokenizer(
                captions, padding="max_length", max_length=length, return_tensors="pt"
            ).input_ids
            for tokenizer, length in zip(tokenizers, (CLIP_LENGTH, T5_LENGTH), strict=True)
        ]
        with torch.autocast("cpu", torch.bfloat16):
            pooled, hidden = clip(ids[0]).pooler_output, t5(ids[1])[0]
        whole = readers[0].loss(pooled, torch.stack([region_answers(scene) for scene in scenes]))
        words = torch.stack([word_answers(scene, T5_LENGTH) for scene in scenes])
        each = readers[1].loss(hidden, words)
        optimizer.zero_grad()
        torch.autograd.backward(whole + each)
        optimizer.step()
        if step % REPORT_STEPS == 0:
            log.info("text step %d: captions %.3f words %.3f", step, whole.item(), each.item())
        step += 1
        spent = (time.monotonic() - started) / (60 * minutes)
