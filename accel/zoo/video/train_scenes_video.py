"""Train the text encoder of scenes-video, then its denoiser, on a CPU, resumably.

`python -m accel.zoo.video.train_scenes_video --minutes 90 --out FOLDER`

The same command goes on from the checkpoint in `--out`; the autoencoder is trained first, if there
is none. Flow matching as for scenes-flux, at first on clips of half the size, in the end on whole
clips of 4,608 tokens.
"""

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from accel.zoo.grounding import Reader
from accel.zoo.train_text import Lesson, train_text
from accel.zoo.training import (
    Learner,
    Run,
    Stage,
    eager_unless,
    outputs_of,
    train,
    training_options,
)
from accel.zoo.training_attention import WanMatmulAttention
from accel.zoo.video.blueprint import (
    LAYERS,
    PATCH,
    SHIFT,
    TEXT_LENGTH,
    clip_tokens,
    new_umt5,
    new_video_transformer,
    video_pipeline,
)
from accel.zoo.video.clip_pool import (
    CLIP_WORD_CLASSES,
    MOVER_CLASSES,
    ClipBatch,
    ClipPool,
    clip_word_answers,
)
from accel.zoo.video.clips import FRAMES, random_clip
from accel.zoo.video.train_vae import new_or_trained_vae

if TYPE_CHECKING:
    from diffusers import AutoencoderKLWan, WanPipeline
    from diffusers.models.transformers.transformer_wan import WanRotaryPosEmbed

NAME = "scenes-video"
TEXT_MINUTES = 5.0
HALF_SHARE = 0.6
HALF_SIDE = 16
MIDDLE_BLOCK = LAYERS // 2 - 1
TRAIN_TIMESTEPS = 1000


class VideoLearner(Learner[ClipBatch]):
    """The denoiser and the text encoder; the autoencoder is only carried along."""

    encoders: ClassVar[frozenset[str]] = frozenset({"umt5"})

    def __init__(self, vae: "AutoencoderKLWan", start: Path | None = None) -> None:
        super().__init__()
        self.transformer = new_video_transformer()
        self.umt5 = new_umt5()
        if start is not None:
            self._load(start)
        width = self.transformer.patch_embedding.out_channels
        self.reader = Reader(width, MOVER_CLASSES)
        self.frozen = (vae,)
        self.ropes = (self.transformer.rope, stretched_rope(width // self._heads))

    @property
    def _heads(self) -> int:
        return int(self.transformer.config.num_attention_heads)

    def _load(self, folder: Path) -> None:
        from diffusers import WanTransformer3DModel
        from transformers import UMT5EncoderModel

        self.transformer = WanTransformer3DModel.from_pretrained(folder, subfolder="transformer")
        self.umt5 = UMT5EncoderModel.from_pretrained(folder, subfolder="text_encoder")
        self.float().train()

    def losses(self, batch: ClipBatch) -> tuple[Tensor, Tensor]:
        """Mean squared error of the predicted velocity, and the grounding of the middle block."""
        clean = batch.latents
        sigma = sample_sigma(len(clean))
        noise = torch.randn_like(clean)
        mix = sigma[:, None, None, None, None]
        self.transformer.rope = self.ropes[clean.shape[-1] == HALF_SIDE]
        middle_block = self.transformer.blocks[MIDDLE_BLOCK]
        with (
            torch.autocast("cpu", torch.bfloat16),
            outputs_of(middle_block) as middle,
            eager_unless(usual=batch.ids.shape[1] == TEXT_LENGTH),
        ):
            with torch.no_grad():
                text = self.read(batch.ids, batch.mask)
            velocity = self.transformer(
                hidden_states=(1 - mix) * clean + mix * noise,
                timestep=sigma * TRAIN_TIMESTEPS,
                encoder_hidden_states=text,
                return_dict=False,
            )[0]
        error: Tensor = velocity.float() - (noise - clean)
        return error.square().mean(), self.reader.loss(middle[0], batch.answers)

    def read(self, ids: Tensor, mask: Tensor) -> Tensor:
        """The text's hidden states [B, T, C], 0 behind its end, as `WanPipeline` has them."""
        hidden: Tensor = self.umt5(ids, attention_mask=mask)[0] * mask[..., None]
        return hidden

    def pipeline(self) -> "WanPipeline":
        """The stock pipeline around the trained parts."""
        return video_pipeline(self.frozen[0], self.transformer, self.umt5)

    def use_training_attention(self) -> None:
        """Use plain matrix products in the denoiser."""
        self.transformer.set_attn_processor(WanMatmulAttention())

    def compiled_blocks(self) -> list[nn.Module]:
        """All blocks but the one that is hooked."""
        blocks = enumerate(self.transformer.blocks)
        return [block for index, block in blocks if index != MIDDLE_BLOCK]

    def read_captions(self, minutes: float) -> None:
        """Train the text encoder alone."""
        lesson = Lesson(
            name="words",
            encoder=self.umt5,
            tokenizer=clip_tokens(),
            length=TEXT_LENGTH,
            classes=CLIP_WORD_CLASSES,
            read=self.read,
            answers=lambda clip, _ends, length: clip_word_answers(clip, length),
        )
        train_text([lesson], random_clip, minutes)


def stretched_rope(head_dim: int) -> "WanRotaryPosEmbed":
    """Positions that lay a half-size clip's tokens over the same square as a whole one's.

    What is learnt small about left and right, near and far then holds at full size.
    """
    from diffusers.models.embeddings import get_1d_rotary_pos_embed
    from diffusers.models.transformers.transformer_wan import WanRotaryPosEmbed

    rope = WanRotaryPosEmbed(head_dim, PATCH, HALF_SIDE)
    places = 2.0 * np.arange(HALF_SIDE) + 0.5
    start = rope.t_dim
    for size in (rope.h_dim, rope.w_dim):
        cosine, sine = get_1d_rotary_pos_embed(
            size, places, use_real=True, repeat_interleave_real=True, freqs_dtype=torch.float64
        )
        rope.freqs_cos[:, start : start + size] = cosine
        rope.freqs_sin[:, start : start + size] = sine
        start += size
    return rope


def sample_sigma(count: int) -> Tensor:
    """Noise levels in 0..1: logit-normal, shifted as the pipeline's are; one in six uniform."""
    sigma = torch.sigmoid(torch.randn(count))
    shifted = SHIFT * sigma / (1 + (SHIFT - 1) * sigma)
    return torch.where(torch.rand(count) < 1 / 6, torch.rand(count), shifted)


def stages(half_share: float) -> tuple[Stage, ...]:
    """Half size for `half_share` of the time, then full size; each time the clips' start first."""
    return (
        Stage("short half", half_share / 2, batch=12, fresh=4, first=384),
        Stage("half", half_share, batch=6, fresh=2, first=256),
        Stage("short", (1 + half_share) / 2, batch=4, fresh=2, first=192),
        Stage("full", 1.0, batch=2, fresh=1, first=96),
    )


FRAMES_OF = {"short half": 9, "half": FRAMES, "short": 5, "full": FRAMES}


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
    trained = new_or_trained_vae(vae, out)
    run = Run(NAME, out, VideoLearner(trained, start), compiled)
    if run.step == 0:
        run.read_captions(text_minutes)

    def pool(stage: Stage, seed: int) -> ClipPool:
        half = stage.name.endswith("half")
        return ClipPool(trained, FRAMES_OF[stage.name], half=half, seed=seed)

    return train(run, stages(half_share), pool, minutes)


def main() -> None:
    """Train or continue, and leave a pipeline folder in `--out`."""
    train_pipeline(**training_options(__doc__, TEXT_MINUTES, HALF_SHARE))


if __name__ == "__main__":
    main()
