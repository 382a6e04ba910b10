"""Train the text encoders of scenes-flux, then its denoiser, on a CPU, resumably.

`python -m accel.zoo.train_scenes_flux --minutes 115 --vae FOLDER --out FOLDER`

The same command goes on from the checkpoint in `--out`; `--start accel/zoo/scenes-flux` goes on
from the shipped weights where that is lost.

Flow matching (arXiv 2210.02747): x = (1 - sigma) data + sigma noise, target noise - data. The
first part of the time is spent at half resolution, where a step costs a quarter.
"""

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from accel.zoo.blueprint import flux_pipeline, new_clip, new_t5, new_transformer
from accel.zoo.grounding import ITEM_CLASSES, Reader
from accel.zoo.scene_pool import SceneBatch, ScenePool, scene_stages
from accel.zoo.scenes import random_scene
from accel.zoo.train_text import pooled_lesson, train_text, words_lesson
from accel.zoo.train_vae import new_or_trained_vae
from accel.zoo.training import (
    Learner,
    Run,
    Stage,
    eager_unless,
    outputs_of,
    train,
    training_options,
)
from accel.zoo.training_attention import MatmulAttention
from accel.zoo.vocabulary import T5_LENGTH

if TYPE_CHECKING:
    from diffusers import AutoencoderKL, FluxPipeline

NAME = "scenes-flux"
TEXT_MINUTES = 5.0
MIDDLE_BLOCK = 1
HALF_SIDE = 16


class FluxLearner(Learner[SceneBatch]):
    """The denoiser and both text encoders; the autoencoder is only carried along."""

    encoders: ClassVar[frozenset[str]] = frozenset({"clip", "t5"})

    def __init__(self, vae: "AutoencoderKL", start: Path | None = None) -> None:
        super().__init__()
        self.transformer = new_transformer()
        self.clip = new_clip()
        self.t5 = new_t5()
        self.reader = Reader(self.transformer.inner_dim, ITEM_CLASSES)
        self.frozen = (vae,)
        if start is not None:
            self._load(start)

    def _load(self, folder: Path) -> None:
        from diffusers import FluxTransformer2DModel
        from transformers import CLIPTextModel, T5EncoderModel

        self.transformer = FluxTransformer2DModel.from_pretrained(folder, subfolder="transformer")
        self.clip = CLIPTextModel.from_pretrained(folder, subfolder="text_encoder")
        self.t5 = T5EncoderModel.from_pretrained(folder, subfolder="text_encoder_2")
        self.float().train()

    def losses(self, batch: SceneBatch) -> tuple[Tensor, Tensor]:
        """Mean squared error of the predicted velocity, and the grounding of the middle block."""
        clean = pack(batch.latents)
        sigma = sample_sigma(len(clean))
        noise = torch.randn_like(clean)
        mix = sigma[:, None, None]
        middle_block = self.transformer.single_transformer_blocks[MIDDLE_BLOCK]
        with (
            torch.autocast("cpu", torch.bfloat16),
            outputs_of(middle_block, 1) as middle,
            eager_unless(usual=batch.t5_ids.shape[1] == T5_LENGTH),
        ):
            with torch.no_grad():
                text = self.t5(batch.t5_ids)[0]
                pooled = self.clip(batch.clip_ids).pooler_output
            velocity = self.transformer(
                hidden_states=(1 - mix) * clean + mix * noise,
                encoder_hidden_states=text,
                pooled_projections=pooled,
                timestep=sigma,
                img_ids=image_ids(half=batch.latents.shape[-1] == HALF_SIDE),
                txt_ids=torch.zeros(text.shape[1], 3),
                return_dict=False,
            )[0]
        error: Tensor = velocity.float() - (noise - clean)
        return error.square().mean(), self.reader.loss(middle[0], batch.answers)

    def pipeline(self) -> "FluxPipeline":
        """The stock pipeline around the trained parts."""
        return flux_pipeline(self.frozen[0], self.transformer, self.clip, self.t5)

    def use_training_attention(self) -> None:
        """Use plain matrix products in the denoiser."""
        self.transformer.set_attn_processor(MatmulAttention())

    def compiled_blocks(self) -> list[nn.Module]:
        """All blocks but the one that is hooked."""
        flux = self.transformer
        blocks = [*flux.transformer_blocks, *flux.single_transformer_blocks]
        return [b for b in blocks if b is not flux.single_transformer_blocks[MIDDLE_BLOCK]]

    def read_captions(self, minutes: float) -> None:
        """Train both text encoders alone."""
        train_text([pooled_lesson(self.clip), words_lesson(self.t5)], random_scene, minutes)


def pack(latents: Tensor) -> Tensor:
    """[B, 4, H, W] to [B, H/2 * W/2, 16], in the order of `FluxPipeline._pack_latents`."""
    batch, channels, height, width = latents.shape
    patches = latents.reshape(batch, channels, height // 2, 2, width // 2, 2)
    return patches.permute(0, 2, 4, 1, 3, 5).reshape(batch, -1, channels * 4)


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


def train_pipeline(
    minutes: float,
    out: Path,
    *,
    vae: Path | None = None,
    start: Path | None = None,
    text_minutes: float = TEXT_MINUTES,
    half_share: float = 0.5,
    compiled: bool = False,
) -> Path:
    """Train or continue for `minutes` in all; returns the pipeline's folder below `out`."""
    torch.manual_seed(0)
    trained = new_or_trained_vae(vae, out)
    run = Run(NAME, out, FluxLearner(trained, start), compiled)
    if run.step == 0:
        run.read_captions(text_minutes)

    def pool(stage: Stage, seed: int) -> ScenePool:
        return ScenePool(trained, half=stage.name == "half", seed=seed, varied_text=True)

    return train(run, scene_stages(half_share), pool, minutes)


def main() -> None:
    """Train or continue, and leave a pipeline folder in `--out`."""
    train_pipeline(**training_options(__doc__, TEXT_MINUTES, half_share=0.5))


if __name__ == "__main__":
    main()
