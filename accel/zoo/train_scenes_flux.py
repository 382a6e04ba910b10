"""Train the text encoders of scenes-flux, then its denoiser, on a CPU, resumably.

`python -m accel.zoo.train_scenes_flux --minutes 75 --vae FOLDER --out FOLDER`

The same command goes on from the checkpoint in `--out`; `--start accel/zoo/scenes-flux` goes on
from the shipped weights where that is lost.

Flow matching (arXiv 2210.02747): x = (1 - sigma) data + sigma noise, target noise - data. The
first part of the time is spent at half resolution, where a step costs a quarter. Schedules run on
elapsed seconds, so training ends on time however busy the machine is.
"""

import argparse
import copy
import logging
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from accel.zoo.blueprint import new_clip, new_t5, new_transformer, save_pipeline
from accel.zoo.grounding import ITEM_CLASSES, Reader
from accel.zoo.latent_pool import LatentPool, TokenBatch
from accel.zoo.train_judge import channels_last
from accel.zoo.train_text import LONG, text_length, train_text
from accel.zoo.training_attention import MatmulAttention
from accel.zoo.vocabulary import T5_LENGTH

if TYPE_CHECKING:
    from diffusers import AutoencoderKL, FluxTransformer2DModel

HALF_SHARE = 0.5
TEXT_MINUTES = 5.0
BATCH = {True: 64, False: 32}
FRESH = {True: 24, False: 12}
FIRST_POOL = {True: 4096, False: 1536}
PEAK_LR = {"muon": 2.5e-3, "adam": 1e-3}
WARMUP_STEPS = 60
DECAY_FROM = 0.4
MATRIX = 2
EMA_DECAY = 0.998
MIDDLE_BLOCK = 1
GROUNDING_WEIGHT = 0.1
CHECKPOINT_S = 300
REPORT_STEPS = 50

log = logging.getLogger(__name__)


class Learner(nn.Module):
    """The trained parts of the pipeline, together."""

    def __init__(self) -> None:
        super().__init__()
        self.transformer = new_transformer()
        self.clip = new_clip()
        self.t5 = new_t5()
        self.reader = Reader(self.transformer.inner_dim, ITEM_CLASSES)

    def losses(self, batch: TokenBatch, *, half: bool) -> tuple[Tensor, Tensor]:
        """Mean squared error of the predicted velocity, and the grounding of the middle block."""
        clean = batch.latents
        sigma = sample_sigma(len(clean))
        noise = torch.randn_like(clean)
        mix = sigma[:, None, None]
        with torch.autocast("cpu", torch.bfloat16), middle_output(self.transformer) as middle:
            with torch.no_grad():
                text = self.t5(batch.t5_ids)[0]
                pooled = self.clip(batch.clip_ids).pooler_output
            velocity = self.transformer(
                hidden_states=(1 - mix) * clean + mix * noise,
                encoder_hidden_states=text,
                pooled_projections=pooled,
                timestep=sigma,
                img_ids=image_ids(half=half),
                txt_ids=torch.zeros(text.shape[1], 3),
                return_dict=False,
            )[0]
        error: Tensor = velocity.float() - (noise - clean)
        return error.square().mean(), self.reader.loss(middle[0], batch.answers)


@contextmanager
def middle_output(transformer: "FluxTransformer2DModel") -> Iterator[list[Tensor]]:
    """Collect the picture's hidden states [B, N, C] behind the block in the middle of the stack."""
    seen: list[Tensor] = []
    block = transformer.single_transformer_blocks[MIDDLE_BLOCK]
    hook = block.register_forward_hook(lambda _block, _inputs, output: seen.append(output[1]))
    try:
        yield seen
    finally:
        hook.remove()


def trained_learner(folder: Path) -> Learner:
    """The learner that a pipeline folder holds, in float32, to go on from."""
    from diffusers import FluxTransformer2DModel
    from transformers import CLIPTextModel, T5EncoderModel

    learner = Learner()
    learner.transformer = FluxTransformer2DModel.from_pretrained(folder, subfolder="transformer")
    learner.clip = CLIPTextModel.from_pretrained(folder, subfolder="text_encoder")
    learner.t5 = T5EncoderModel.from_pretrained(folder, subfolder="text_encoder_2")
    return learner.float().train()


def sample_sigma(count: int) -> Tensor:
    """Noise levels in 0..1: logit-normal about 0.57, one in six uniform."""
    sigma = torch.sigmoid(0.3 + torch.randn(count))
    return torch.where(torch.rand(count) < 1 / 6, torch.rand(count), sigma)


def image_ids(*, half: bool) -> Tensor:
    """Positions [N, 3] of 16 x 16 patches, or of 8 x 8 patches laid over the same square."""
    axis = 2.0 * torch.arange(8) + 0.5 if half else torch.arange(16.0)
    ids = torch.zeros(len(axis), len(axis), 3)
    ids[..., 1] = axis[:, None]
    ids[..., 2] = axis[None, :]
    return ids.flatten(0, 1)


def compile_blocks(transformer: "FluxTransformer2DModel") -> None:
    """Compile every block but the one that is hooked: a hook that comes and goes recompiles."""
    read = transformer.single_transformer_blocks[MIDDLE_BLOCK]
    for block in [*transformer.transformer_blocks, *transformer.single_transformer_blocks]:
        if block is not read:
            block.compile(dynamic=False)


def optimizers(learner: Learner) -> dict[str, torch.optim.Optimizer]:
    """Muon for the blocks' matrices, AdamW for everything else."""
    hidden: list[nn.Parameter] = []
    rest: list[nn.Parameter] = []
    trained = chain(learner.transformer.named_parameters(), learner.reader.named_parameters())
    for name, weight in trained:
        in_block = "transformer_blocks" in name and "norm" not in name
        (hidden if in_block and weight.ndim == MATRIX else rest).append(weight)
    return {
        "muon": torch.optim.Muon(
            hidden, lr=PEAK_LR["muon"], weight_decay=0.02, adjust_lr_fn="match_rms_adamw"
        ),
        "adam": torch.optim.AdamW(rest, lr=PEAK_LR["adam"], betas=(0.9, 0.98), weight_decay=0.01),
    }


@dataclass(slots=True)
class Run:
    """A training run: what is learnt, how far it is, and where it is kept."""

    out: Path
    vae: "AutoencoderKL"
    learner: Learner = field(default_factory=Learner)
    ema: Learner = field(init=False)
    optimizers: dict[str, torch.optim.Optimizer] = field(init=False)
    step: int = 0
    seconds: float = 0.0
    samples: dict[bool, int] = field(default_factory=lambda: {True: 0, False: 0})

    def __post_init__(self) -> None:
        """Copy the weights to be averaged, and continue from a checkpoint if there is one."""
        self.ema = copy.deepcopy(self.learner)
        self.learner.transformer.set_attn_processor(MatmulAttention())
        compile_blocks(self.learner.transformer)
        self.optimizers = optimizers(self.learner)
        if self._checkpoint.exists():
            self._restore(torch.load(self._checkpoint, weights_only=True))

    @property
    def _checkpoint(self) -> Path:
        return self.out / "checkpoint.pt"

    def _restore(self, saved: dict[str, Any]) -> None:
        self.learner.load_state_dict(saved["learner"])
        self.ema.load_state_dict(saved["ema"])
        for name, optimizer in self.optimizers.items():
            optimizer.load_state_dict(saved["optimizers"][name])
        self.step, self.seconds = saved["step"], saved["seconds"]
        self.samples = dict(saved["samples"])

    def save(self) -> None:
        """Write the checkpoint, and the averaged weights as a pipeline folder."""
        saved = {
            "learner": self.learner.state_dict(),
            "ema": self.ema.state_dict(),
            "optimizers": {name: o.state_dict() for name, o in self.optimizers.items()},
            "step": self.step,
            "seconds": self.seconds,
            "samples": self.samples,
        }
        unfinished = self._checkpoint.with_suffix(".part")
        torch.save(saved, unfinished)
        unfinished.replace(self._checkpoint)
        parts = (self.vae, self.ema.transformer, self.ema.clip, self.ema.t5)
        save_pipeline(self.out / "scenes-flux", *parts)

    def read_captions(self, minutes: float) -> None:
        """Begin with the text encoders alone, see `train_text`."""
        train_text(self.learner.clip, self.learner.t5, minutes)
        self.ema.load_state_dict(self.learner.state_dict())
        self.seconds += 60 * minutes

    def update(self, batch: TokenBatch, *, half: bool, spent: float) -> tuple[float, float]:
        """Take one step; `spent` is the share of the time that has gone. Returns both losses."""
        warm = min(1.0, (self.step + 1) / WARMUP_STEPS)
        rate = warm * min(1.0, (1 - spent) / (1 - DECAY_FROM))
        for name, peak in PEAK_LR.items():
            for group in self.optimizers[name].param_groups:
                group["lr"] = peak * rate
        velocity, grounding = self.learner.losses(batch, half=half)
        self.learner.zero_grad()
        torch.autograd.backward(velocity + GROUNDING_WEIGHT * grounding)
        torch.nn.utils.clip_grad_norm_(self.learner.parameters(), 1.0)
        for optimizer in self.optimizers.values():
            optimizer.step()
        self._average()
        self.step += 1
        self.samples[half] += len(batch.latents)
        return velocity.item(), grounding.item()

    @torch.no_grad()
    def _average(self) -> None:
        decay = min(EMA_DECAY, (1 + self.step) / (10 + self.step))
        averaged: list[Tensor] = list(self.ema.parameters())
        current: list[Tensor] = list(self.learner.parameters())
        torch._foreach_lerp_(averaged, current, 1 - decay)


def train(run: Run, minutes: float, half_share: float = HALF_SHARE) -> None:
    """Train until `minutes` of wall clock, over all resumed parts, are spent."""
    budget_s = 60 * minutes
    lengths = random.Random(run.step)
    pool: LatentPool | None = None
    losses: list[tuple[float, float]] = []
    clock = saved_at = time.monotonic()
    while run.seconds < budget_s:
        half = run.seconds < half_share * budget_s
        if pool is None or pool.half != half:
            pool = LatentPool(run.vae, half=half, seed=run.step)
            pool.grow(FIRST_POOL[half])
        pool.grow(FRESH[half])
        length = text_length(lengths.random())
        batch = pool.draw(BATCH[half] // (4 if length >= LONG else 1), length)
        # Compiling for a length that is rare takes longer than it saves.
        with torch.compiler.set_stance("default" if length == T5_LENGTH else "force_eager"):
            loss = run.update(batch, half=half, spent=run.seconds / budget_s)
        losses = [*losses[1 - REPORT_STEPS :], loss]
        now = time.monotonic()
        run.seconds += now - clock
        clock = now
        if run.step % REPORT_STEPS == 0 or run.step == 1:
            _report(run, losses, half=half)
        if now - saved_at > CHECKPOINT_S:
            run.save()
            saved_at = now
    run.save()


def _report(run: Run, losses: list[tuple[float, float]], *, half: bool) -> None:
    log.info(
        "step %d velocity %.4f grounding %.4f seconds %.0f samples %s %s",
        run.step,
        *(sum(column) / len(column) for column in zip(*losses, strict=True)),
        run.seconds,
        run.samples,
        "half" if half else "full",
    )


def main() -> None:
    """Train or continue, and leave a pipeline folder in `--out`."""
    from diffusers import AutoencoderKL

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=75.0)
    parser.add_argument("--vae", type=Path, required=True, help="folder written by train_vae")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--start", type=Path, help="pipeline folder to go on from, no checkpoint")
    parser.add_argument(
        "--text-minutes", type=float, default=TEXT_MINUTES, help="time on captions alone, first"
    )
    parser.add_argument(
        "--half-share", type=float, default=HALF_SHARE, help="share of the time at half resolution"
    )
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("medium")
    options.out.mkdir(parents=True, exist_ok=True)
    vae = AutoencoderKL.from_pretrained(options.vae).eval()
    channels_last(vae)
    learner = Learner() if options.start is None else trained_learner(options.start)
    run = Run(options.out, vae, learner)
    if run.step == 0:
        run.read_captions(options.text_minutes)
    train(run, options.minutes, options.half_share)


if __name__ == "__main__":
    main()
