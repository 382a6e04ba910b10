"""What `accel zoo` and its commands do; `accel.cli` says how they are written."""

import argparse
import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from accel import zoo
from accel.errors import OptionError
from accel.prompts import check_prompt
from accel.record import prepare_folder
from accel.source import SetupError, find
from accel.zoo import families
from accel.zoo.language.decode import Plan

_MEGABYTE = 1e6
_OF_PICTURES = ("steps", "size", "frames", "guidance")
_OF_TEXT = ("length", "tokens_per_step", "temperature")


def listing(_: argparse.Namespace) -> int:
    """Prints every model with its size and what it is."""
    _say("\n".join(f"{name:14}{_size(name):>9}  {_summary(name)}" for name in families.FAMILIES))
    return 0


def show(options: argparse.Namespace) -> int:
    """Prints a model's card."""
    card = zoo.card(options.name)
    rows = [
        f"{card.name}: {card.summary}",
        "",
        f"call      {card.call}",
        f"size      {_size(card.name)}, {len(card.files)} files",
        f"licence   {card.licence}",
        f"data      {card.data}",
        f"recipe    {card.recipe}",
        f"trained   {', '.join(f'{part} {took:.0f} s' for part, took in card.seconds.items())}",
        f"reaches   {json.dumps(card.figures.get('recommended', 'not evaluated yet'))}",
        f"example   {zoo.prompts(card.name, 1)[0]}",
        f"reads     {families.family(card.name).reads()}",
    ]
    _say("\n".join(rows))
    return 0


def sample(options: argparse.Namespace) -> int:
    """Makes one picture or clip and writes it, or prints one answer."""
    prompt = check_prompt(options.prompt or zoo.prompts(options.name, 1)[0], "--prompt")
    if zoo.card(options.name).kind == "language":
        return _answer(options, prompt)
    return _draw(options, prompt)


def _draw(options: argparse.Namespace, prompt: str) -> int:
    name = options.name
    _refuse(options, _OF_TEXT, "makes pictures")
    made_by = families.drawing(name)
    call = {**zoo.card(name).call, **_asked(options)}
    families.check_words(name, prompt)
    made_by.check_call(call)
    if options.out is None:
        raise OptionError(f"{name} makes pictures; say where to write one with --out FILE.")
    made_by.check_output(options.out)
    prepare_folder(options.out.parent)
    if not made_by.understood(prompt):
        example = zoo.prompts(name, 1)[0]
        _note(f"{name} was trained on sentences like {example!r}; this one may come out oddly.")
    output = find(name).load(options.device)(
        prompt, generator=torch.Generator("cpu").manual_seed(options.seed), **call
    )
    made_by.save(output, options.out)
    _say(str(options.out))
    return 0


def _answer(options: argparse.Namespace, prompt: str) -> int:
    _refuse(options, _OF_PICTURES, "writes text")
    if options.device not in ("auto", "cpu"):
        raise OptionError(f"--device is {options.device}; {options.name} is decoded on the cpu.")
    call = zoo.card(options.name).call
    plan = Plan(
        gen_length=options.length or call["gen_length"],
        tokens_per_step=options.tokens_per_step or call["tokens_per_step"],
        temperature=options.temperature or 0.0,
        generator=torch.Generator("cpu").manual_seed(options.seed),
    )
    if options.out is not None:
        prepare_folder(options.out.parent)
    (text,) = zoo.load(options.name).answers([prompt], plan)
    if options.out is None:
        _say(text)
        return 0
    options.out.write_text(text + "\n", encoding="utf-8")
    _say(str(options.out))
    return 0


def _refuse(options: argparse.Namespace, names: Sequence[str], does: str) -> None:
    given = [name for name in names if getattr(options, name) is not None]
    if given:
        flags = ", ".join("--" + name.replace("_", "-") for name in given)
        raise OptionError(f"{options.name} {does}; leave out {flags}.")


def evaluate(options: argparse.Namespace) -> int:
    """Measures a model and writes the record."""
    zoo.card(options.name)
    prepare_folder(options.out)
    _log()
    made_by = families.family(options.name)
    _say(str(made_by.evaluate(options.prompts, options.out, options.only)))
    return 0


def train(options: argparse.Namespace) -> int:
    """Trains a model from nothing, or goes on where it stopped."""
    made_by = families.family(options.name)
    out = options.out or Path(f"accel-zoo-{options.name}")
    prepare_folder(out)
    _log()
    try:
        folder = made_by.train(options.minutes, out)
    except FileNotFoundError as error:
        raise SetupError(str(error)) from error
    _say(f"{folder}\nTo put it into the zoo: python -m {made_by.PUBLISHER} {options.name} --help")
    return 0


def _asked(options: argparse.Namespace) -> dict[str, Any]:
    asked: dict[str, Any] = {}
    if options.steps is not None:
        asked["num_inference_steps"] = options.steps
    if options.size is not None:
        asked["width"], asked["height"] = options.size
    if options.frames is not None:
        asked["num_frames"] = options.frames
    if options.guidance is not None:
        asked[families.drawing(options.name).ABOUT.guidance] = options.guidance
    if "num_frames" in asked and "num_frames" not in zoo.card(options.name).call:
        raise OptionError(f"{options.name} makes single pictures; leave out --frames.")
    return asked


def _summary(name: str) -> str:
    if name in zoo.names():
        return zoo.card(name).summary
    return f"Not in this copy; train it: accel zoo train {name}"


def _size(name: str) -> str:
    if name not in zoo.names():
        return "-"
    return f"{sum(zoo.card(name).files.values()) / _MEGABYTE:.1f} MB"


def _log() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")


def _note(text: str) -> None:
    sys.stderr.write(f"accel: note: {text}\n")


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
