"""Put a trained pipeline into the zoo: `python -m accel.zoo.publish scenes-flux --run FOLDER`.

Copies the pipeline's files, and writes `card.json` and `README.md` from the training log's end and
from the evaluation record, if there is one. Without `--run` only card and README are rewritten.
"""

import argparse
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from accel.record import read_record
from accel.zoo.catalogue import CARD_FILE, HERE, checksum
from accel.zoo.families import drawing

RECORDS = Path("tests/benchmarks/records")
OWN_FILES = (CARD_FILE, "README.md")


def copy_weights(source: Path, target: Path) -> None:
    """Replace the pipeline's files in `target` by those of `source`; card and README stay."""
    target.mkdir(parents=True, exist_ok=True)
    for path in target.iterdir():
        if path.name not in OWN_FILES:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    shutil.copytree(source, target, dirs_exist_ok=True)


def write_card(folder: Path, guidance: float, seconds: dict[str, float], record: Path) -> None:
    """Write `card.json` for the pipeline's files that lie in `folder` now."""
    about = drawing(folder.name).ABOUT
    call = {**about.call, about.guidance: guidance}
    if guidance > 1:
        call["negative_prompt"] = ""
    entries = {
        "summary": about.summary,
        "licence": about.licence,
        "data": about.data,
        "recipe": about.recipe,
        "kind": about.part,
        "call": call,
        "seconds": seconds,
    }
    save_card(folder, entries, record)


def save_card(folder: Path, about: Mapping[str, Any], record: Path) -> None:
    """Write `card.json`: `about`, what `record` measured, and the files in `folder` now."""
    paths = sorted(p for p in folder.rglob("*") if p.is_file() and p.name not in OWN_FILES)
    names = {path: path.relative_to(folder).as_posix() for path in paths}
    card = {
        **about,
        "figures": read_record(record)["results"] if record.exists() else {},
        "files": {name: path.stat().st_size for path, name in names.items()},
        "sha256": {name: checksum(path) for path, name in names.items()},
    }
    (folder / CARD_FILE).write_text(json.dumps(card, indent=1) + "\n", encoding="utf-8")


def read_card(folder: Path) -> dict[str, Any]:
    """What `save_card` wrote."""
    card: dict[str, Any] = json.loads((folder / CARD_FILE).read_text(encoding="utf-8"))
    return card


def write_readme(folder: Path) -> None:
    """Write the pipeline's `README.md` from `card.json`."""
    card, name = read_card(folder), folder.name
    about = drawing(name).ABOUT
    made = ("frames", "frames[0]") if about.part == "video" else ("image", "images[0]")
    example = [
        f'pipe = zoo.load("{name}")',
        f'prompt = "{about.example}"',
        f'{made[0]} = pipe(prompt, **zoo.card("{name}").call).{made[1]}',
    ]
    steps = card["call"]["num_inference_steps"]
    save_readme(folder, example, _figures(name, card["figures"], steps))


def save_readme(folder: Path, example: Sequence[str], figures: Sequence[str]) -> None:
    """Write `README.md`: what `card.json` says, `example` as code, and the lines of `figures`."""
    card, name = read_card(folder), folder.name
    size_mb = sum(card["files"].values()) / 1e6
    call = ", ".join(f"{key}={value!r}" for key, value in card["call"].items())
    trained = ", ".join(f"{part} {value:.0f} s" for part, value in card["seconds"].items())
    lines = [
        f"# {name}",
        "",
        card["summary"],
        "",
        "```python",
        "from accel import zoo",
        "",
        *example,
        "```",
        "",
        f"- Recommended call: `{call}`",
        f"- Licence: {card['licence']}",
        f"- Data: {card['data']}",
        f"- Recipe: {card['recipe']}",
        f"- Trained: {trained}",
        f"- Size: {size_mb:.1f} MB, weights in fp16",
        "",
        *figures,
    ]
    (folder / "README.md").write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")


def _figures(name: str, figures: dict[str, Any], steps: int) -> list[str]:
    """What was measured, stage by stage, or a line saying that nothing was."""
    if not figures:
        return [f"Not evaluated yet: run `accel zoo eval {name}`."]
    lines = []
    if best := figures.get("recommended"):
        told = ", ".join(f"{key} {_said(value)}" for key, value in _shown(best).items())
        lines += [f"Right on held-out prompts, with the recommended call: {told}.", ""]
    if accuracy := figures.get("accuracy"):
        keys = list(_shown(next(iter(next(iter(accuracy.values())).values()))))
        lines += [f"By solver and number of steps, {' / '.join(keys)}:", ""]
        lines += _table(accuracy, lambda row: " / ".join(_said(row[key]) for key in keys))
    if psnr := figures.get("psnr_db"):
        lines += [f"Mean PSNR in dB to the {steps}-step output / to the converged solution:", ""]
        lines += _table(psnr, lambda row: f"{row['recommended_mean']} / {row['converged_mean']}")
    return lines


def _shown(found: dict[str, float]) -> dict[str, float]:
    """The shares among the figures."""
    return {key: value for key, value in found.items() if not key.endswith("_db")}


def _said(share: float) -> str:
    return f"{share:.1%}"


def _table(
    curves: dict[str, dict[str, dict[str, float]]], cell: Callable[[dict[str, float]], str]
) -> list[str]:
    """One row for each number of steps, and one column for each solver."""
    counts = next(iter(curves.values()))
    rows = [[count, *(cell(row[count]) for row in curves.values())] for count in counts]
    return markdown_table(["steps", *curves], rows)


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table, and an empty one behind it."""
    lines = [head, ["---"] * len(head), *rows]
    return [*(f"| {' | '.join(line)} |" for line in lines), ""]


def main() -> None:
    """Copy, then write card and README."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("--run", type=Path, help="the --out of the training")
    parser.add_argument("--guidance", type=float, required=True)
    parser.add_argument("--vae-seconds", type=float, required=True)
    parser.add_argument("--denoiser-seconds", type=float, required=True)
    parser.add_argument("--record", type=Path, required=True)
    options = parser.parse_args()
    folder = HERE / options.name
    if options.run is not None:
        copy_weights(options.run / options.name, folder)
    seconds = {"vae": options.vae_seconds, "denoiser": options.denoiser_seconds}
    write_card(folder, options.guidance, seconds, options.record)
    write_readme(folder)


if __name__ == "__main__":
    main()
