"""Train the text encoder of scenes-unet, then its denoiser, on a CPU, resumably.

`python -m accel.zoo.train_scenes_unet --minutes 90 --out FOLDER`

The same command goes on from the checkpoint in `--out`. The autoencoder is that of scenes-flux.

Noise prediction (arXiv 2006.11239) with the weights of arXiv 2303.09556, which keep the many nearly
clean steps from drowning those that decide what the picture shows.
"""

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from accel.zoo.blueprint import new_clip, new_ddim, new_unet, unet_pipeline, unshifted
from accel.zoo.catalogue import HERE
from accel.zoo.grounding import ITEM_CLASSES, Reader
from accel.zoo.scene_pool import SceneBatch, ScenePool, scene_stages
from accel.zoo.scenes import random_scene
from accel.zoo.train_judge import channels_last
from accel.zoo.train_text import early_lesson, pooled_lesson, train_text
from accel.zoo.train_vae import new_or_trained_vae
from accel.zoo.training import Learner, Run, Stage, outputs_of, train, training_options

if TYPE_CHECKING:
    from diffusers import AutoencoderKL, StableDiffusionPipeline

NAME = "scenes-unet"
VAE = HERE / "scenes-flux" / "vae"
TEXT_MINUTES = 5.0
HALF_SHARE = 0.45
MOST_SNR = 5.0


class UNetLearner(Learner[SceneBatch]):
    """The denoiser and the text encoder; the autoencoder is only carried along."""

    encoders: ClassVar[frozenset[str]] = frozenset({"clip"})

    def __init__(self, vae: "AutoencoderKL", start: Path | None = None) -> None:
        super().__init__()
        self.unet = new_unet()
        self.clip = new_clip()
        self.reader = Reader(self.unet.config.block_out_channels[-1], ITEM_CLASSES)
        self.frozen = (vae,)
        self.noising = new_ddim()
        if start is not None:
            self._load(start)
        channels_last(self.unet)

    def _load(self, folder: Path) -> None:
        from diffusers import UNet2DConditionModel
        from transformers import CLIPTextModel

        self.unet = UNet2DConditionModel.from_pretrained(folder, subfolder="unet")
        self.clip = CLIPTextModel.from_pretrained(folder, subfolder="text_encoder")
        self.float().train()

    def losses(self, batch: SceneBatch) -> tuple[Tensor, Tensor]:
        """Weighted squared error of the predicted noise, and the grounding of the way up."""
        clean = batch.latents.contiguous(memory_format=torch.channels_last)
        noise = torch.randn_like(clean)
        timestep = torch.randint(self.noising.config.num_train_timesteps, (len(clean),))
        noisy = self.noising.add_noise(clean, noise, timestep)
        with torch.autocast("cpu", torch.bfloat16), outputs_of(self.unet.up_blocks[0]) as deep:
            with torch.no_grad():
                text = self.clip(batch.clip_ids)[0]
            predicted = self.unet(noisy, timestep, text).sample
        error = (predicted.float() - noise).square().flatten(1).mean(1)
        kept = self.noising.alphas_cumprod[timestep]
        snr = kept / (1 - kept)
        # [B, C, H, W], half the latents' side, to one row for each of the pool's picture tokens.
        hidden = deep[0].flatten(2).transpose(1, 2)
        weighted: Tensor = error * snr.clamp(max=MOST_SNR) / snr
        return weighted.mean(), self.reader.loss(hidden, batch.answers)

    def pipeline(self) -> "StableDiffusionPipeline":
        """The stock pipeline around the trained parts."""
        return unet_pipeline(self.frozen[0], self.unet, self.clip)

    def use_training_attention(self) -> None:
        """Use plain matrix products in the denoiser."""
        from diffusers.models.attention_processor import AttnProcessor

        self.unet.set_attn_processor(AttnProcessor())

    def compiled_blocks(self) -> list[nn.Module]:
        """The residual and the transformer blocks on the way down, in the middle and up."""
        worth = {"ResnetBlock2D", "BasicTransformerBlock"}
        return [part for part in self.unet.modules() if type(part).__name__ in worth]

    def read_captions(self, minutes: float) -> None:
        """Train the text encoder alone."""
        train_text([pooled_lesson(self.clip), early_lesson(self.clip)], random_scene, minutes)


def train_pipeline(
    minutes: float,
    out: Path,
    *,
    vae: Path | None = None,
    start: Path | None = None,
    text_minutes: float = TEXT_MINUTES,
    half_share: float = HALF_SHARE,
    compiled: bool = False,
) -> Path:
    """Train or continue for `minutes` in all; returns the pipeline's folder below `out`."""
    torch.manual_seed(0)
    trained = unshifted(new_or_trained_vae(vae or VAE, out))
    run = Run(NAME, out, UNetLearner(trained, start), compiled)
    if run.step == 0:
        run.read_captions(text_minutes)

    def pool(stage: Stage, seed: int) -> ScenePool:
        return ScenePool(trained, half=stage.name == "half", seed=seed)

    return train(run, scene_stages(half_share), pool, minutes)


def main() -> None:
    """Train or continue, and leave a pipeline folder in `--out`."""
    train_pipeline(**training_options(__doc__, TEXT_MINUTES, HALF_SHARE))


if __name__ == "__main__":
    main()
