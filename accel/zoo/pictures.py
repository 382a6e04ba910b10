"""What the zoo's two makers of pictures have in common."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accel.zoo.families import check_suffix, in_words
from accel.zoo.scenes import SIDE_PX, Scene, Split, parse, sample_scenes
from accel.zoo.vocabulary import caption_words

if TYPE_CHECKING:
    from torch import Tensor

    from accel.zoo.evaluate import Bench

MOST_PX = 256
LICENCE = "Apache-2.0; the data is MIT (Fashion-MNIST, Zalando SE)"
DATA = (
    "Scenes drawn by accel.zoo.scenes from Debian's dataset-fashion-mnist, train split; one in ten "
    "descriptions held out"
)
EXAMPLE = "a large red ankle boot above a small blue bag on a navy ground"
CALL = {"height": SIDE_PX, "width": SIDE_PX, "num_inference_steps": 28}
SUFFIXES = (".png", ".webp", ".jpg", ".jpeg")


def prompts(count: int, split: Split) -> list[str]:
    """Captions of a fixed list of scenes.

    Raises:
        ValueError: there are not so many.
    """
    return [scene.caption() for scene in sample_scenes(count, split)]


def words() -> list[str]:
    """Every word of the scenes' grammar, sorted."""
    return caption_words()


def reads() -> str:
    """The words that a prompt may have."""
    return in_words(words())


def understood(prompt: str) -> bool:
    """Whether `prompt` is the caption of a scene."""
    try:
        parse(prompt)
    except ValueError:
        return False
    return True


def check_output(path: Path) -> None:
    """Nothing, if an image can be written to `path`.

    Raises:
        OptionError: its suffix is none of an image.
    """
    check_suffix(path, SUFFIXES)


def save(output: Any, path: Path) -> None:
    """Write the first image of a pipeline's output."""
    output.images[0].save(path)


def bench(schedulers: Mapping[str, Callable[[], Any]], guidance: str) -> "Bench":
    """How a maker of pictures is measured: by the judge."""
    from accel.zoo.evaluate import Bench
    from accel.zoo.judge import Judge

    judge = Judge.load()

    def figures(images: "Tensor", scenes: Sequence[Scene]) -> dict[str, float]:
        score = judge.score(images, scenes)
        return {
            "kind": round(score.kind_accuracy, 4),
            "colour": round(score.colour_accuracy, 4),
            "both": round(score.both_accuracy, 4),
        }

    return Bench(
        schedulers=schedulers,
        guidance=guidance,
        tasks=sample_scenes,
        figures=figures,
        output="images",
        batch=32,
        counts={"recommended": 256, "accuracy": 256, "psnr": 32, "guidance": 64},
    )
