"""The masked loss of the three language models, from clean batches and noise."""

from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from accel.zoo.language.batches import Batch, Noise, mask_answers, mask_blocks
from accel.zoo.language.drive import Drive, as_bias, block_ids, may_attend
from accel.zoo.language.fast_forward import cast_weights, hidden_states
from accel.zoo.language.tasks import TASKS
from accel.zoo.language.vocabulary import END_ID

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

DTYPE = torch.bfloat16


class Inputs(NamedTuple):
    """What one forward pass reads: ids [B, T], positions [T], and who may see whom [B, 1, ., T]."""

    input_ids: Tensor
    positions: Tensor
    allowed: Tensor


class Outcome(NamedTuple):
    """A loss to minimise, and how many answer tokens of each task were guessed, and wrongly."""

    loss: Tensor
    guessed: Tensor
    wrong: Tensor


def masked_loss(
    model: "LlamaForCausalLM",
    batch: Batch,
    generator: torch.Generator,
    dtype: torch.dtype = DTYPE,
) -> Outcome:
    """The weighted cross entropy of the masked answer tokens, mean over tokens and rows."""
    drive = Drive.of(model)
    noise, inputs = noised(batch, drive, generator)
    weights = cast_weights(model, dtype)
    bias = as_bias(inputs.allowed, dtype)
    hidden = hidden_states(model, weights, inputs.input_ids, inputs.positions, bias)
    end = hidden.shape[1] - int(drive.logits_shifted)
    answers = hidden[:, end - batch.gen_length : end][noise.masked]
    logits = F.linear(answers, weights["model.embed_tokens.weight"]).float()
    targets = batch.canvas[:, -batch.gen_length :][noise.masked]
    entropy = F.cross_entropy(logits, targets, reduction="none")
    loss = (entropy * noise.weight[noise.masked]).sum() / noise.masked.numel()
    return Outcome(loss, *_tally(logits, targets, batch, noise))


def _tally(logits: Tensor, targets: Tensor, batch: Batch, noise: Noise) -> tuple[Tensor, Tensor]:
    """Guesses and wrong ones by task, [14] each; end tokens, which are easy, do not count."""
    tasks = batch.tasks[:, None].expand_as(noise.masked)[noise.masked]
    told = targets != END_ID
    wrong = told & (logits.argmax(-1) != targets)
    counts = (torch.bincount(tasks[rows], minlength=len(TASKS)) for rows in (told, wrong))
    guessed, missed = counts
    return guessed, missed


def noised(batch: Batch, drive: Drive, generator: torch.Generator) -> tuple[Noise, Inputs]:
    """Noise for the batch, and what the model reads then."""
    if drive.block_length:
        return _two_streams(batch, drive, generator)
    noise = mask_answers(len(batch.canvas), batch.gen_length, generator)
    ids = _with_masks(batch, noise, drive.mask_id)
    return noise, Inputs(ids, torch.arange(ids.shape[1]), may_attend(batch.valid))


def _with_masks(batch: Batch, noise: Noise, mask_id: int) -> Tensor:
    ids = batch.canvas.clone()
    ids[:, -batch.gen_length :].masked_fill_(noise.masked, mask_id)
    return ids


def _two_streams(batch: Batch, drive: Drive, generator: torch.Generator) -> tuple[Noise, Inputs]:
    """The clean sequence, then a noisy copy of its end (SDAR, arXiv 2510.06303).

    A noisy block sees itself and the clean blocks before it, which is what it sees while it is
    decoded, so that one pass trains every block. The copy begins early enough to hold the whole
    block in which a prompt ends.
    """
    blocks = block_ids(batch.valid, drive.block_length)
    noise = mask_blocks(blocks[:, -batch.gen_length :], generator)
    width = batch.canvas.shape[1]
    begin = max(0, width - batch.gen_length - drive.block_length + 1)
    noisy = _with_masks(batch, noise, drive.mask_id)
    positions = torch.arange(width)
    clean = may_attend(batch.valid, drive.block_length)[:, 0]
    copied, valid = blocks[:, begin:, None], batch.valid
    before = (blocks[:, None] < copied) & valid[:, None]
    own = (copied == blocks[:, None, begin:]) & valid[:, None, begin:]
    upper = torch.cat((clean, torch.zeros_like(before.transpose(1, 2))), dim=2)
    allowed = torch.cat((upper, torch.cat((before, own), dim=2)), dim=1)
    return noise, Inputs(
        torch.cat((batch.canvas, noisy[:, begin:]), dim=1),
        torch.cat((positions, positions[begin:])),
        allowed[:, None],
    )
