"""A comparison as a folder: PNGs, `report.json`, and `report.html`, one page that needs nothing."""

import base64
import html
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from accel import compare_pictures, compare_style, compare_table, metrics
from accel.compare import Comparison, Pair
from accel.compare_pictures import encode, png
from accel.compare_table import decibels
from accel.control import Control
from accel.metrics import Summary
from accel.record import prepare_folder, write_atomically
from accel.report import Decision, Report

_LETTERS = {"computed": "C", "reused": "R", "forecast": "F", "sparse": "S", "forced": "!"}
_MEANINGS = {
    "computed": "computed: the method asked for it",
    "reused": "reused from an earlier step",
    "forecast": "extrapolated from earlier steps",
    "sparse": "computed with some of the scores of its attention",
    "forced": "computed because a guard said so",
}
_ABOUT_CONTROLS = (
    "The same pipeline with fewer steps: the step count whose measured time equals that of the "
    "accelerated pipeline. Quality is interpolated between the two whole step counts around it."
)
# Pictures smaller than this are enlarged pixel by pixel, so that nothing is smoothed over.
_SMALL_PX = 256
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def save(comparison: Comparison, folder: Path) -> Path:
    """Returns the path of `report.html`, having written it, `report.json` and the PNGs.

    Raises:
        OptionError: the folder cannot be written to.
    """
    prepare_folder(folder)
    gain = _gain(comparison)
    for name, content in _files(comparison, gain):
        write_atomically(folder / name, content)
    report = {**comparison.to_dict(), "difference_gain": gain}
    text = json.dumps(report, indent=2, allow_nan=False) + "\n"
    write_atomically(folder / "report.json", text.encode())
    path = folder / "report.html"
    write_atomically(path, page(comparison).encode())
    return path


def page(comparison: Comparison) -> str:
    """Returns the whole page, pictures and all, as HTML."""
    gain = _gain(comparison)
    pairs = "".join(_pair(comparison, place, gain) for place in range(len(comparison.pairs)))
    title = f"{comparison.model}, accelerated"
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<title>{_safe(title)}</title><style>{compare_style.CSS}</style></head>
<body><main>
<h1>{_safe(title)} {_badge(comparison)}</h1>
<p class="soft">{_safe(", ".join(comparison.methods))}, {comparison.steps} steps,
{len(comparison.pairs)} prompts, on {_safe(comparison.device)}</p>
{_tiles(comparison)}
<div class="card"><ul class="verdicts">{_verdicts(comparison)}</ul></div>
<h2>The same time, spent differently</h2>
<div class="card"><div class="scroll">{_table(comparison)}</div></div>
<h2>Pictures</h2>
<p class="soft">Drag over a picture to move the edge between A (unaccelerated) and B (accelerated).
The same noise on both sides.</p>
{pairs}
<h2>How this was measured</h2>
<div class="card">{_facts(comparison)}</div>
</main><script>{compare_style.JS}</script></body></html>
"""


def _gain(comparison: Comparison) -> int:
    pairs = comparison.pairs
    return compare_pictures.gain_for(compare_pictures.apart(p.plain, p.fast) for p in pairs)


def _files(comparison: Comparison, gain: int) -> Iterator[tuple[str, bytes]]:
    for place, pair in enumerate(comparison.pairs):
        yield f"{place:03d}_plain.png", png(pair.plain)
        yield f"{place:03d}_fast.png", png(pair.fast)
        heat = compare_pictures.difference(pair.plain, pair.fast, gain)
        yield f"{place:03d}_difference.png", encode(heat)
        for control in comparison.controls:
            if control.images:
                yield f"{place:03d}_{control.solver}.png", png(control.images[place])


def _badge(comparison: Comparison) -> str:
    calls = sum(report.calls for report in comparison.reports)
    reused = sum(report.reused for report in comparison.reports)
    kind = "badge" if comparison.engaged else "badge bad"
    return f'<span class="{kind}">{reused} of {calls} calls reused</span>'


def _tiles(comparison: Comparison) -> str:
    ratio, summary = comparison.ratio, comparison.summary
    tiles = (
        (
            f"{ratio.paired.median:.2f}×",
            f"as fast ({ratio.paired.p20:.2f} to {ratio.paired.p80:.2f})",
        ),
        (decibels(summary.psnr_mean), _psnr_words(summary)),
        (f"{summary.ssim_mean:.4f}", f"SSIM, worst {summary.ssim_worst:.4f}"),
        (f"{comparison.skipped_share:.0%}", "of the blocks or modules skipped"),
    )
    cells = (
        f'<div class="card tile"><b>{big}</b><span>{under}</span></div>' for big, under in tiles
    )
    return f'<div class="tiles">{"".join(cells)}</div>'


def _psnr_words(summary: Summary) -> str:
    if summary.identical == summary.count:
        return "to the unaccelerated pictures"
    return f"PSNR in dB, worst {decibels(summary.psnr_worst)}"


def _verdicts(comparison: Comparison) -> str:
    bad = ("Nothing", "No ", "The control", "Switched")
    items = (
        f'<li class="{"bad" if verdict.startswith(bad) else "good"}">{_safe(verdict)}</li>'
        for verdict in comparison.verdicts
    )
    return "".join(items)


def _table(comparison: Comparison) -> str:
    head = "".join(f"<th>{_safe(name)}</th>" for name in compare_table.header(comparison))
    body = ""
    for place, row in enumerate(compare_table.rows(comparison)):
        cells = "".join(f"<td>{_safe(cell)}</td>" for cell in row)
        body += f'<tr class="{"ours" if place == 1 else "other"}">{cells}</tr>'
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _facts(comparison: Comparison) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in comparison.versions.items())
    seeds = ", ".join(str(pair.shot.seed) for pair in comparison.pairs)
    named = (
        *compare_table.facts(comparison),
        ("seeds", seeds),
        ("off", _off(comparison)),
        ("versions", versions),
        ("controls", _ABOUT_CONTROLS),
        ("SSIM", metrics.SSIM_VARIANT),
    )
    return f"<dl>{''.join(f'<dt>{_safe(n)}</dt><dd>{_safe(t)}</dd>' for n, t in named)}</dl>"


def _off(comparison: Comparison) -> str:
    if comparison.off_is_exact:
        return "Switched off, the picture is bit-identical to that of the untouched pipeline."
    return "Switched off, the picture differs from that of the untouched pipeline."


def _pair(comparison: Comparison, place: int, gain: int) -> str:
    pair = comparison.pairs[place]
    heat = encode(compare_pictures.difference(pair.plain, pair.fast, gain))
    score = pair.score
    numbers = f"PSNR {decibels(score.psnr)}, SSIM {score.ssim:.4f}"
    if score.identical:
        numbers = "identical"
    shown = [_slider(pair, numbers), _heat(heat, pair, gain)]
    shown += [_control(control, place) for control in comparison.controls if control.images]
    timelines = "".join(map(_timeline, pair.reports))
    title = _safe(pair.shot.prompt or "ready-made embeddings")
    return f"""<section class="card pair"><header><h3>{title}</h3>
<span class="soft">seed {pair.shot.seed}</span></header>
<div class="shows">{"".join(shown)}</div>{timelines}</section>"""


def _slider(pair: Pair, numbers: str) -> str:
    return f"""<figure><div class="slider">{_image(png(pair.plain), pair.plain, "A, unaccelerated")}
<div class="over">{_image(png(pair.fast), pair.fast, "B, accelerated")}</div>
<div class="edge"></div><span class="tag a">A</span><span class="tag b">B</span>
<input type="range" min="0" max="100" value="50" aria-label="edge between A and B"></div>
<figcaption class="under"><span><b>A and B</b>: {numbers}</span>
<button type="button">Show B</button></figcaption></figure>"""


def _heat(content: bytes, pair: Pair, gain: int) -> str:
    ramp = compare_pictures.heat(np.linspace(0.0, 1.0, 9))
    stops = ", ".join(f"rgb({r}, {g}, {b})" for r, g, b in ramp.tolist())
    return f"""<figure>{_image(content, pair.plain, "difference")}
<div class="ramp" style="background: linear-gradient(to right, {stops})"></div>
<figcaption><b>Difference, {gain} times</b>: yellow is {1 / gain:.3f} of the full range
or more, the largest is {pair.score.max_error:.3f}</figcaption></figure>"""


def _control(control: Control, place: int) -> str:
    picture, score = control.images[place], control.scores[place]
    name = compare_table.control_name(control)
    return f"""<figure>{_image(png(picture), picture, name)}
<figcaption><b>{_safe(name)}</b>: {control.shown_steps} steps shown; PSNR {decibels(score.psnr)},
SSIM {score.ssim:.4f} at equal time</figcaption></figure>"""


def _image(content: bytes, picture: Any, name: str) -> str:
    width = getattr(picture, "width", _SMALL_PX)
    kind = "small" if width < _SMALL_PX else "large"
    data = base64.b64encode(content).decode()
    return f'<img class="{kind}" alt="{_safe(name)}" src="data:image/png;base64,{data}">'


def _timeline(report: Report) -> str:
    branches: dict[str, list[Decision]] = {}
    for decision in report.decisions:
        branches.setdefault(decision.branch, []).append(decision)
    lines = "".join(_line(branch, decisions) for branch, decisions in branches.items())
    actions = [action for action in _LETTERS if action in {d.action for d in report.decisions}]
    legend = "".join(
        f'<span><i class="{action}">{_LETTERS[action]}</i>{_MEANINGS[action]}</span>'
        for action in actions
    )
    rows = "".join(_decision(decision) for decision in report.decisions)
    warnings = "".join(f'<p class="soft">Note: {_safe(text)}</p>' for text in report.warnings)
    return f"""<div class="timeline">{lines}<div class="legend">{legend}</div>{warnings}</div>
<details><summary>Every decision and its reason</summary><div class="scroll"><table><thead><tr>
<th>step</th><th>branch</th><th>action</th><th>reason</th><th>change</th><th>error</th>
<th>blocks run</th><th>skipped</th></tr></thead><tbody>{rows}</tbody></table></div></details>"""


def _line(branch: str, decisions: list[Decision]) -> str:
    cells = "".join(
        f'<i class="{_class(decision)}" title="{_safe(_told(decision))}">'
        f"{_LETTERS.get(decision.action, '?')}</i>"
        for decision in decisions
    )
    return f'<div class="line"><span>{_safe(branch)}</span><div class="cells">{cells}</div></div>'


def _class(decision: Decision) -> str:
    return decision.action if decision.action in _LETTERS else "computed"


def _told(decision: Decision) -> str:
    value = "" if decision.value is None else f" (change {decision.value:.4f})"
    return f"step {decision.step}: {decision.action}, {decision.reason}{value}"


def _decision(decision: Decision) -> str:
    cells = (
        str(decision.step),
        decision.branch,
        decision.action,
        decision.reason,
        "" if decision.value is None else f"{decision.value:.4f}",
        "" if decision.error is None else f"{decision.error:.4f}",
        str(decision.blocks_run),
        str(decision.blocks_skipped),
    )
    return f"<tr>{''.join(f'<td>{_safe(cell)}</td>' for cell in cells)}</tr>"


def _safe(text: str) -> str:
    return html.escape(text, quote=True)
