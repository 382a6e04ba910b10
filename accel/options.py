"""Options that several commands of the command line share, and what they mean for a pipeline."""

import argparse
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from accel.batch import MAX_BATCH_SIZE, MAX_SEED
from accel.errors import OptionError
from accel.memory import LightCache
from accel.method_text import parse_memory
from accel.source import Source

MAX_STEPS = 1000
MAX_SIDE_PX = 8192
MAX_GUIDANCE = 100.0
MAX_TEMPERATURE = 10.0
# Every autoencoder of diffusers halves at least three times, save for the smallest models.
_SIDE_MULTIPLE_PX = 8
_SIZE = re.compile(r"(\d{1,6})(?:x(\d{1,6}))?")

DEFAULT_MODEL = "scenes-flux"


def whole_number(low: int, high: int) -> Callable[[str], int]:
    """Returns a parser of whole numbers from `low` to `high`."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = low - 1
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number from {low} to {high}")
        return value

    return parse


def _number(high: float) -> Callable[[str], float]:
    """Returns a parser of numbers from 0 to `high`."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0.0 <= value <= high:
            raise argparse.ArgumentTypeError(f"{text!r} is no number from 0 to {high:g}")
        return value

    return parse


guidance = _number(MAX_GUIDANCE)
temperature = _number(MAX_TEMPERATURE)


def size(text: str) -> tuple[int, int]:
    """Returns the width and height in pixels that `text` writes, as 512 or 768x512."""
    match = _SIZE.fullmatch(text)
    width = int(match[1]) if match else 0
    height = int(match[2] or match[1]) if match else 0
    for side in (width, height):
        if not 0 < side <= MAX_SIDE_PX or side % _SIDE_MULTIPLE_PX:
            raise argparse.ArgumentTypeError(
                f"{text!r} is no size; expected WIDTHxHEIGHT, both multiples of "
                f"{_SIDE_MULTIPLE_PX} up to {MAX_SIDE_PX}"
            )
    return width, height


def add_model(parser: argparse.ArgumentParser, default: str | None = DEFAULT_MODEL) -> None:
    """Adds what is drawn with, and how large and how long."""
    group = parser.add_argument_group("model")
    group.add_argument(
        "--model",
        default=default,
        help="folder of a diffusers pipeline, Hub id, or model of the zoo"
        + (" (default: %(default)s)" if default else ""),
    )
    group.add_argument(
        "--dtype",
        default="auto",
        choices=("auto", "float32", "float16", "bfloat16"),
        help="of the weights (default: fits the device)",
    )
    add_sampling(group)


def add_sampling(group: "argparse._ActionsContainer") -> None:
    """Adds how one picture is sampled, and on which device."""
    group.add_argument("--device", default="auto", help="as torch names it (default: the best)")
    group.add_argument("--steps", type=whole_number(1, MAX_STEPS), help="denoising steps")
    group.add_argument("--size", type=size, metavar="WxH", help="in pixels, as 512 or 768x512")
    group.add_argument("--guidance", type=guidance, help="guidance scale")
    group.add_argument(
        "--seed",
        type=whole_number(0, MAX_SEED - MAX_STEPS),
        default=0,
        help="of the first picture; the next ones count up (default: 0)",
    )


def add_acceleration(parser: argparse.ArgumentParser) -> None:
    """Adds the choice of methods."""
    group = parser.add_argument_group("acceleration")
    group.add_argument("--preset", help='quality, balanced or fast (default: "balanced")')
    group.add_argument(
        "--method",
        action="append",
        default=[],
        metavar="METHOD",
        help='as in Python, "FirstBlockCache(threshold=0.1)"; may be repeated',
    )
    group.add_argument(
        "--memory",
        type=_memory,
        metavar="LIGHTCACHE",
        help="less memory for what is kept, as in Python, \"LightCache(budget='2GiB')\"",
    )


def _memory(text: str) -> LightCache:
    try:
        return parse_memory(text)
    except OptionError as error:
        # argparse has words of its own for other errors.
        raise argparse.ArgumentTypeError(str(error)) from error


def add_pictures(parser: argparse.ArgumentParser, rounds: int) -> None:
    """Adds which prompts are drawn, and how often."""
    add_prompts(parser).add_argument(
        "--rounds",
        type=whole_number(1, 100),
        default=rounds,
        help="how often each is drawn by each side (default: %(default)s)",
    )


def add_prompts(parser: argparse.ArgumentParser) -> "argparse._ArgumentGroup":
    """Adds which prompts are drawn; returns their group."""
    group = parser.add_argument_group("pictures")
    group.add_argument("--prompt", action="append", default=[], help="may be repeated")
    group.add_argument("--prompts-file", type=Path, metavar="FILE", help="one prompt a line")
    group.add_argument(
        "--count",
        type=whole_number(1, MAX_BATCH_SIZE),
        default=4,
        help="how many of the model's own prompts, if none are given (default: 4)",
    )
    return group


def call_arguments(source: Source, options: argparse.Namespace) -> dict[str, Any]:
    """Returns the pipeline's arguments: what its card recommends, and what the user asks for.

    Raises:
        OptionError: the pipeline takes no prompt, or not what was asked for.
    """
    parameters = source.parameters()
    asked: dict[str, Any] = {}
    if options.steps is not None:
        asked["num_inference_steps"] = options.steps
    if options.size is not None:
        asked["width"], asked["height"] = options.size
    if getattr(options, "frames", None) is not None:
        asked["num_frames"] = options.frames
    if options.guidance is not None:
        asked[_guidance_name(source)] = options.guidance
    if parameters is not None:
        _require(parameters, {"prompt": None, **asked}, source)
    return {**source.call, **asked}


def _guidance_name(source: Source) -> str:
    # Guidance-distilled models take both; the one their card sets is the one that guides.
    return "true_cfg_scale" if "true_cfg_scale" in source.call else "guidance_scale"


def _require(parameters: Mapping[str, Any], asked: Mapping[str, Any], source: Source) -> None:
    for name in asked:
        if name not in parameters:
            raise OptionError(
                f"{source.name} is a {source.class_name}, which takes no {name}. It takes "
                f"{', '.join(list(parameters)[:12])}, ..."
            )
