"""What the zoo offers for scenes-video."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from accel.errors import OptionError
from accel.zoo import families
from accel.zoo.pictures import LICENCE, MOST_PX
from accel.zoo.scenes import SIDE_PX, Split
from accel.zoo.video.clips import FRAMES, Clip, clip_words, parse_clip, sample_clips

if TYPE_CHECKING:
    from torch import Tensor

MOST_FRAMES = 65
SUFFIXES = (".gif", ".webp", ".png")
FRAME_MS = 100

PUBLISHER = "accel.zoo.publish"

ABOUT = families.About(
    summary="A stock WanPipeline of clips of 17 frames, 64 x 64 pixels, 4,608 tokens: one or two "
    "tinted garments that move over a ground.",
    licence=LICENCE,
    data="Clips drawn by accel.zoo.video.clips from Debian's dataset-fashion-mnist, train split; "
    "one in ten descriptions held out",
    recipe="accel.zoo.video.train_vae, then accel.zoo.video.train_scenes_video, on two CPU cores; "
    "see there",
    call={
        "height": SIDE_PX,
        "width": SIDE_PX,
        "num_frames": FRAMES,
        "num_inference_steps": 24,
        "max_sequence_length": 32,
    },
    guidance="guidance_scale",
    example="a large red bag moving quickly left above a small blue dress bouncing right on a navy "
    "ground",
    part="video",
)


def load(folder: Path, torch_dtype: torch.dtype) -> Any:
    """A stock `WanPipeline`. Its call has sizes of its own as defaults: pass the card's."""
    return families.load_pipeline(folder, torch_dtype)


def prompts(count: int, split: Split) -> list[str]:
    """Captions of a fixed list of clips.

    Raises:
        ValueError: there are not so many.
    """
    return [clip.caption() for clip in sample_clips(count, split)]


def words() -> list[str]:
    """Every word of the clips' grammar, sorted."""
    return clip_words()


def reads() -> str:
    """The words that a prompt may have."""
    return families.in_words(words())


def understood(prompt: str) -> bool:
    """Whether `prompt` is the caption of a clip."""
    try:
        parse_clip(prompt)
    except ValueError:
        return False
    return True


def check_call(call: Mapping[str, Any]) -> None:
    """Nothing, if the model can take the sizes in `call`.

    Raises:
        OptionError: it cannot.
    """
    families.check_sides("scenes-video", call, multiple=16, most=MOST_PX)
    frames = call.get("num_frames", FRAMES)
    if not (1 <= frames <= MOST_FRAMES and frames % 2 == 1):
        raise OptionError(
            f"num_frames is {frames}; scenes-video takes odd numbers from 1 to {MOST_FRAMES} (one "
            f"frame, and two for each latent frame), and was trained on {FRAMES}."
        )


def check_output(path: Path) -> None:
    """Nothing, if an animated picture can be written to `path`.

    Raises:
        OptionError: its suffix is none of one.
    """
    families.check_suffix(path, SUFFIXES)


def save(output: Any, path: Path) -> None:
    """Write the first video of a pipeline's output as an animated picture."""
    first, *others = to_pictures(output.frames[0])
    # Lossless where the format can be; both settings mean nothing to the other formats.
    first.save(path, save_all=True, append_images=others, duration=FRAME_MS, loop=0, lossless=True)


def to_pictures(frames: Any) -> list[Any]:
    """PIL images of frames [F, 64, 64, 3] in 0..1."""
    from PIL import Image

    return [Image.fromarray((frame * 255).round().astype("uint8")) for frame in frames]


def evaluate(count: int | None, out: Path, only: list[str] | None) -> Path:
    """Measure the model; returns the record."""
    from accel.zoo import evaluate, solvers
    from accel.zoo.judge import Judge
    from accel.zoo.video.blueprint import SHIFT
    from accel.zoo.video.scoring import clip_figures

    judge = Judge.load()

    def figures(videos: "Tensor", clips: Sequence[Clip]) -> dict[str, float]:
        return clip_figures(judge, videos, clips)

    bench = evaluate.Bench(
        schedulers=solvers.flow("unipc", SHIFT),
        guidance=ABOUT.guidance,
        tasks=sample_clips,
        figures=figures,
        output="frames",
        batch=4,
        counts={"recommended": 48, "accuracy": 8, "psnr": 2, "guidance": 6},
        steps=(24, 16, 12, 8, 5),
    )
    return evaluate.run("scenes-video", bench, count, out, only)


def train(minutes: float, out: Path) -> Path:
    """Train anew or go on; returns the model's folder."""
    from accel.zoo.video import train_scenes_video

    return train_scenes_video.train_pipeline(minutes, out)
