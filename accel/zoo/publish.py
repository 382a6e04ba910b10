"""Put a trained pipeline into the zoo: `python -m accel.zoo.publish scenes-flux --run FOLDER`.

Copies the pipeline's files, and writes `card.json` and `README.md` from the training log's end and
from the evaluation record, if there is one. Without `--run` only card and README are rewritten.
"""

import argparse
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from accel.record import read_record
from accel.zoo.catalogue import CARD_FILE, HERE
from accel.zoo.vocabulary import T5_LENGTH

STEPS = 28
ABOUT = {
    "summary": "A stock FluxPipeline of 64 x 64 pictures: one or two tinted garments on a ground.",
    "licence": "Apache-2.0; the data is MIT (Fashion-MNIST, Zalando SE)",
    "data": "Scenes drawn by accel.zoo.scenes from Debian's dataset-fashion-mnist, train split; "
    "one in ten descriptions held out",
    "recipe": "accel.zoo.train_vae, then accel.zoo.train_scenes_flux, on two CPU cores; see there. "
    "The first 7996 s of the denoiser went by before its text encoders were trained on captions "
    "first; the rest goes on from those weights with --start, at --half-share 0.2",
}
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
    call: dict[str, Any] = {
        "height": 64,
        "width": 64,
        "num_inference_steps": STEPS,
        "max_sequence_length": T5_LENGTH,
    }
    if guidance > 1:
        call |= {"true_cfg_scale": guidance, "negative_prompt": ""}
    save_card(folder, {**ABOUT, "call": call, "seconds": seconds}, record)


def save_card(folder: Path, about: Mapping[str, Any], record: Path) -> None:
    """Write `card.json`: `about`, what `record` measured, and the files in `folder` now."""
    paths = sorted(p for p in folder.rglob("*") if p.is_file() and p.name not in OWN_FILES)
    card = {
        **about,
        "figures": read_record(record)["results"] if record.exists() else {},
        "files": {p.relative_to(folder).as_posix(): p.stat().st_size for p in paths},
    }
    (folder / CARD_FILE).write_text(json.dumps(card, indent=1) + "\n", encoding="utf-8")


def read_card(folder: Path) -> dict[str, Any]:
    """What `save_card` wrote."""
    card: dict[str, Any] = json.loads((folder / CARD_FILE).read_text(encoding="utf-8"))
    return card


def write_readme(folder: Path) -> None:
    """Write the pipeline's `README.md` from `card.json`."""
    card, name = read_card(folder), folder.name
    example = [
        f'pipe = zoo.load("{name}")',
        f'prompt = "{_PROMPT}"',
        f'image = pipe(prompt, **zoo.card("{name}").call).images[0]',
    ]
    save_readme(folder, example, _figures(card["figures"], card["call"]["num_inference_steps"]))


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


_PROMPT = "a large red ankle boot above a small blue bag on a navy ground"


def _figures(figures: dict[str, Any], steps: int) -> list[str]:
    """What was measured, stage by stage, or a line saying that nothing was."""
    if not figures:
        return ["Not evaluated yet: run `python -m accel.zoo.evaluate scenes-flux`."]
    lines = []
    if best := figures.get("recommended"):
        lines += [
            "On held-out prompts and with the recommended call the judge recognises",
            f"{best['kind']:.1%} of the garments and {best['colour']:.1%} of the colours,",
            f"both at once in {best['both']:.1%}.",
            "",
        ]
    if accuracy := figures.get("accuracy"):
        lines += ["Garment / colour by solver and number of steps:", ""]
        lines += _table(accuracy, "{0[kind]:.1%} / {0[colour]:.1%}")
    if psnr := figures.get("psnr_db"):
        lines += [f"Mean PSNR in dB to the {steps}-step output / to the converged solution:", ""]
        lines += _table(psnr, "{0[recommended_mean]} / {0[converged_mean]}")
    return lines


def _table(curves: dict[str, dict[str, dict[str, float]]], cell: str) -> list[str]:
    """One row for each number of steps, and one column for each solver."""
    counts = next(iter(curves.values()))
    rows = [[count, *(cell.format(row[count]) for row in curves.values())] for count in counts]
    return markdown_table(["steps", *curves], rows)


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table, and an empty one behind it."""
    lines = [head, ["---"] * len(head), *rows]
    return [*(f"| {' | '.join(line)} |" for line in lines), ""]


def main() -> None:
    """Copy, then write card and README."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("--run", type=Path, help="what train_scenes_flux wrote")
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
