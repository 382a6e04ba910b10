"""Put a trained language model into the zoo: `python -m accel.zoo.language.publish tiny-llada ...`.

Copies the model's files, and writes `card.json` and `README.md` from the run's checkpoint and from
the evaluation record, if there is one. Without `--run` only card and README are rewritten.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from accel.zoo.catalogue import HERE
from accel.zoo.language.blueprint import SHAPES, shape_named
from accel.zoo.language.evaluate import SHORT_ROOM
from accel.zoo.publish import (
    RECORDS,
    copy_weights,
    markdown_table,
    read_card,
    save_card,
    save_readme,
)

SUMMARIES: Mapping[str, str] = MappingProxyType(
    {
        "tiny-llada": "A masked diffusion language model shaped like LLaDA: bidirectional, any "
        "order, answers that end in end tokens.",
        "tiny-sdar": "A block-causal masked diffusion language model, driven like SDAR and LLaDA2: "
        "a block sees itself and what lies before it.",
        "tiny-dream": "A masked diffusion language model whose logits are shifted like Dream's: "
        "row i - 1 predicts token i.",
    }
)
ABOUT = {
    "kind": "language",
    "licence": "Apache-2.0",
    "data": "Tasks made by accel.zoo.language.tasks; one problem in ten held out",
    "recipe": "accel.zoo.language.train on two CPU cores; see there",
}


def write_card(folder: Path, seconds: float, record: Path) -> None:
    """Write `card.json` for the model's files that lie in `folder` now.

    Raises:
        OptionError: the zoo knows no model of the folder's name.
    """
    shape = shape_named(folder.name)
    call = {"gen_length": SHORT_ROOM, "tokens_per_step": 1, "block_length": shape.block_length}
    about = {
        **ABOUT,
        "summary": SUMMARIES[folder.name],
        "call": call,
        "seconds": {"model": seconds},
    }
    save_card(folder, about, record)


def write_readme(folder: Path) -> None:
    """Write `README.md` from `card.json`."""
    example = [f'model = zoo.load("{folder.name}")', 'print(model.answers(["sort: qbza"]))']
    save_readme(folder, example, _figures(folder.name, read_card(folder)["figures"]))


def _figures(name: str, figures: dict[str, Any]) -> list[str]:
    """Accuracy by task and tokens a step, or a line saying that nothing was measured."""
    if not figures:
        return [f"Not evaluated yet: run `accel zoo eval {name}`."]
    curves = figures["tokens_per_step"]
    first = next(iter(curves.values()))
    rows = [
        [task, *(f"{curve['tasks'][task]['accuracy']:.1%}" for curve in curves.values())]
        for task in first["tasks"]
    ]
    rows.append(["all", *(f"{curve['all']['accuracy']:.1%}" for curve in curves.values())])
    per_forward = [f"{curve['tokens_per_forward']:.2f}" for curve in curves.values()]
    rows.append(["answer tokens per forward", *per_forward])
    return [
        f"Right answers to {first['all']['items']} held-out items, by tokens committed a step:",
        "",
        *markdown_table(["task", *curves], rows),
    ]


def main() -> None:
    """Copy, then write card and README."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=list(SHAPES))
    parser.add_argument("--run", type=Path, help="what train wrote")
    parser.add_argument("--record", type=Path, help="what evaluate wrote, elsewhere than usual")
    options = parser.parse_args()
    folder = HERE / options.name
    if options.run is not None:
        copy_weights(options.run / options.name, folder)
        seconds = torch.load(options.run / "checkpoint.pt", weights_only=True)["seconds"]
    else:
        seconds = read_card(folder)["seconds"]["model"]
    write_card(folder, round(seconds), options.record or RECORDS / f"zoo-{options.name}.json")
    write_readme(folder)


if __name__ == "__main__":
    main()
