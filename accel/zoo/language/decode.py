"""The plain decoder that the language models are measured with: low confidence in blocks.

LLaDA's own order of decoding (arXiv 2502.09992, section 2.4): of the masked tokens in the current
block those with the highest confidence are committed, a fixed number at every forward pass. It
caches nothing; it is what accelerated decoding is compared with.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from accel.errors import OptionError
from accel.zoo.language.drive import Drive, aligned_logits, block_ids

DEFAULT_BLOCK = 32


@dataclass(frozen=True, slots=True)
class Decoded:
    """Answers [B, G], filled with the end token behind its first, and forward passes by row [B]."""

    tokens: Tensor
    forwards: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How to decode; departs from LLaDA in that a row stops as soon as its answer has ended.

    `block_length` 0 takes the model's own, or 32 where it has none; a model with blocks of its own
    takes no other. `temperature` 0 is greedy; above it tokens are drawn, with `generator`, and the
    surest draws are committed, which favours probable tokens; only blocks of one token draw from
    the model's joint law. The mask token is never committed, and of equal confidences the first
    position's wins.

    Raises:
        OptionError: a number is out of range.
    """

    gen_length: int
    tokens_per_step: int = 1
    block_length: int = 0
    temperature: float = 0.0
    generator: torch.Generator | None = None

    def __post_init__(self) -> None:
        """Check the ranges."""
        lowest = {"gen_length": 1, "tokens_per_step": 1, "block_length": 0, "temperature": 0}
        for name, least in lowest.items():
            if (found := getattr(self, name)) < least:
                raise OptionError(f"{name} is {found}; it must be {least} or more.")

    def block_for(self, drive: Drive) -> int:
        """The length of a block.

        Raises:
            OptionError: the model has blocks of another length.
        """
        if drive.block_length and self.block_length not in {0, drive.block_length}:
            raise OptionError(
                f"block_length is {self.block_length}, but the model was trained with blocks of "
                f"{drive.block_length}. Leave it at 0."
            )
        return self.block_length or drive.block_length or DEFAULT_BLOCK


@torch.inference_mode()
def decode(model: Any, prompts: Sequence[Sequence[int]], plan: Plan) -> Decoded:
    """The answers to a batch of prompts of any lengths.

    Raises:
        OptionError: there is no prompt, one is empty, or `plan` does not fit the model.
        AccelUnsupportedError: the model's configuration names no mask token.
    """
    drive = Drive.of(model)
    canvas, valid = blank_canvas(prompts, plan.gen_length, drive.mask_id)
    start = canvas.shape[1] - plan.gen_length
    blocks = _schedule(valid, start, plan.block_for(drive), drive)
    forwards = torch.zeros(len(canvas), dtype=torch.long)
    active = torch.arange(len(canvas))
    while len(active):
        rows = canvas[active]
        logits = aligned_logits(model, drive, rows, valid[active])[:, start:].float()
        tokens, confidence = _propose(logits, drive.mask_id, plan)
        answers = rows[:, start:]
        masked = answers == drive.mask_id
        chosen = _transfer(masked, confidence, blocks[active], plan.tokens_per_step)
        canvas[active, start:] = torch.where(chosen, tokens, answers)
        forwards[active] += 1
        active = active[~_ended(canvas[active, start:], drive)]
    return Decoded(_with_tail(canvas[:, start:], drive), forwards)


def blank_canvas(
    prompts: Sequence[Sequence[int]], gen_length: int, mask_id: int
) -> tuple[Tensor, Tensor]:
    """Prompts aligned on the right and masks behind them, [B, N], and what is no padding, [B, N].

    Raises:
        OptionError: there is no prompt, or one is empty.
    """
    lengths = [len(prompt) for prompt in prompts]
    if not lengths or min(lengths) == 0:
        raise OptionError(
            f"Prompts of {lengths} tokens were given; expected one or more, not empty."
        )
    width = max(lengths)
    canvas = torch.full((len(prompts), width + gen_length), mask_id)
    valid = torch.ones_like(canvas, dtype=torch.bool)
    for row, prompt in enumerate(prompts):
        padding = width - len(prompt)
        # Any id does for padding: nothing attends to it.
        canvas[row, :padding] = prompt[0]
        canvas[row, padding:width] = torch.tensor(prompt)
        valid[row, :padding] = False
    return canvas, valid


def _schedule(valid: Tensor, start: int, block_length: int, drive: Drive) -> Tensor:
    """The block of every answer token, [B, G]: the model's own blocks begin with the prompt."""
    if drive.block_length:
        return block_ids(valid, block_length)[:, start:]
    return (torch.arange(valid.shape[1] - start) // block_length).expand(len(valid), -1)


def _propose(logits: Tensor, mask_id: int, plan: Plan) -> tuple[Tensor, Tensor]:
    """A token for every position and how probable it is, [B, G] each."""
    logits[..., mask_id] = -torch.inf
    probabilities = logits.softmax(-1)
    scores = logits
    if plan.temperature > 0:
        # Gumbel's trick in LLaDA's form, in its precision.
        uniform = torch.rand(logits.shape, generator=plan.generator, dtype=torch.float64)
        scores = logits.double() - plan.temperature * (-uniform.log()).log()
    tokens = scores.argmax(-1)
    return tokens, probabilities.gather(-1, tokens[..., None])[..., 0]


def _transfer(masked: Tensor, confidence: Tensor, blocks: Tensor, count: int) -> Tensor:
    """The `count` most confident masked positions of each row's first unfinished block, [B, G]."""
    after_all = blocks.max() + 1
    current = torch.where(masked, blocks, after_all).amin(1, keepdim=True)
    eligible = masked & (blocks == current)
    ranked = torch.where(eligible, confidence, -1.0).argsort(dim=1, descending=True, stable=True)
    chosen = torch.zeros_like(masked).scatter_(1, ranked[:, :count], value=True)
    return chosen & eligible


def _ended(answers: Tensor, drive: Drive) -> Tensor:
    """Whether a row holds no mask, or none before an end token, [B]."""
    masks_before = (answers == drive.mask_id).cumsum(1)
    complete: Tensor = masks_before[:, -1] == 0
    if drive.end_id is None:
        return complete
    return complete | ((answers == drive.end_id) & (masks_before == 0)).any(1)


def _with_tail(answers: Tensor, drive: Drive) -> Tensor:
    if drive.end_id is None:
        return answers
    behind = (answers == drive.end_id).cumsum(1) > 0
    return answers.masked_fill(behind, drive.end_id)
