"""A comparison leaves the pipeline alone, says what happened, and says it when nothing did."""

import io
import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from accel import compare_page, compare_pictures, compare_table, metrics
from accel.bench import Ratio
from accel.compare import Comparison, compare
from accel.control import Control
from accel.errors import OptionError
from accel.metrics import Score
from accel.report import Decision
from accel.shot import Shot
from caching import FirstBlockCache
from tests.unit.tiny_pictures import flux_pictures, shot

ENGAGES = FirstBlockCache(threshold=0.9, warmup=1, tail=1, min_steps=1)
NEVER = FirstBlockCache(threshold=0.0)


@pytest.fixture(scope="module")
def pipe() -> Any:
    """Returns a tiny pipeline."""
    return flux_pictures()


@pytest.fixture(scope="module")
def compared(pipe: Any) -> Comparison:
    """Returns two prompts compared with a method that engages, controls included."""
    shots = [shot(0, steps=6), shot(1, steps=6)]
    return compare(pipe, shots, [ENGAGES], rounds=1)


def told(comparison: Comparison) -> str:
    return "\n".join(comparison.verdicts)


def with_quality(comparison: Comparison, ours: float, theirs: float) -> Comparison:
    """Returns the comparison with other PSNRs for ours and for both controls."""
    score = Score(psnr=theirs, ssim=0.9, mae=0.1, max_error=0.0 if math.isinf(theirs) else 0.5)
    pairs = tuple(
        replace(pair, score=replace(score, psnr=ours, max_error=0.5)) for pair in comparison.pairs
    )
    controls = tuple(
        replace(control, scores=(score,) * len(pairs)) for control in comparison.controls
    )
    ratio = Ratio.of([2.0, 2.0], [1.0, 1.0])
    return replace(comparison, pairs=pairs, controls=controls, ratio=ratio)


def test_both_sides_start_from_the_same_noise_and_only_one_reuses(
    pipe: Any, compared: Comparison
) -> None:
    for pair in compared.pairs:
        assert metrics.score(pair.plain, pair.shot.run(pipe)).identical
        assert not pair.score.identical
        assert pair.reports[0].reused > 0
    assert compared.engaged
    assert 0.0 < compared.skipped_share < 1.0
    assert compared.off_is_exact


def test_the_pipeline_is_left_as_it_was(pipe: Any) -> None:
    before = (type(pipe), pipe.scheduler, dict(pipe.config), set(vars(pipe.transformer)))
    runs: list[str] = []
    compare(pipe, [shot(0, steps=2)], [ENGAGES], rounds=2, controls=False, on_run=runs.append)
    after = (type(pipe), pipe.scheduler, dict(pipe.config), set(vars(pipe.transformer)))
    assert before == after
    assert runs == ["warm-up", "warm-up", "A", "B", "A", "B"]


def test_both_controls_stand_beside_it(compared: Comparison) -> None:
    names = [control.scheduler for control in compared.controls]
    assert names == ["FlowMatchEulerDiscreteScheduler", "UniPCMultistepScheduler"]
    rows = compare_table.rows(compared)
    assert [row[0] for row in rows] == [
        "unaccelerated",
        "accelerated",
        "fewer steps, FlowMatchEuler",
        "fewer steps, UniPCMultistep",
    ]
    assert {len(row) for row in rows} == {len(compare_table.header(compared))}


def test_the_table_prints_every_number_of_the_record(compared: Comparison) -> None:
    text = str(compared)
    quality = compared.summary
    for number in (
        f"{compared.ratio.paired.median:.2f} times",
        f"{compared.ratio.of_medians:.2f}",
        f"{quality.psnr_mean:.2f}",
        f"{quality.psnr_worst:.2f}",
        f"{quality.ssim_worst:.4f}",
        f"{compared.skipped_share:.0%}",
        *(f"{control.steps:.1f}" for control in compared.controls),
    ):
        assert number in text


def test_the_record_is_valid_json_with_every_decision(compared: Comparison) -> None:
    record = json.loads(json.dumps(compared.to_dict(), allow_nan=False))
    decisions = record["pairs"][0]["reports"][0]["decisions"]
    assert len(decisions) == 6
    assert all(decision["reason"] for decision in decisions)
    assert [control["solver"] for control in record["controls"]] == ["own", "multistep"]


def test_a_method_that_never_engages_is_said_to_do_nothing(pipe: Any) -> None:
    found = compare(pipe, [shot(0, steps=3)], [NEVER], rounds=1)
    assert not found.engaged
    assert told(found).startswith("Nothing engaged")
    assert found.pairs[0].reports[0].warnings[0] in str(found)
    assert "control" not in told(found)
    assert found.summary.psnr_mean == math.inf
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["quality"]["psnr_mean"] is None
    assert "identical" in str(found)
    assert "badge bad" in compare_page.page(found)


@pytest.mark.parametrize(
    ("ours", "theirs", "verdict"),
    [
        (30.0, 35.0, "The control is better"),
        (35.0, 30.0, "Better than"),
        (30.0, 30.05, "No better than"),
        (30.0, math.inf, "against identical"),
    ],
)
def test_each_control_gets_a_plain_verdict(
    compared: Comparison, ours: float, theirs: float, verdict: str
) -> None:
    found = with_quality(compared, ours, theirs)
    assert found.verdicts[0].startswith("2.00 times as fast; PSNR 30" if ours < 35 else "2.00")
    assert sum(verdict in sentence for sentence in found.verdicts) == 2


def test_a_speed_that_the_skipped_blocks_do_not_explain_is_not_believed(
    compared: Comparison,
) -> None:
    limit = 1.25 / (1.0 - compared.skipped_share)
    found = replace(compared, ratio=Ratio.of([limit * 1.01], [1.0]))
    assert "No faith in" in told(found)
    found = replace(compared, ratio=Ratio.of([limit * 0.99], [1.0]))
    assert "No faith in" not in told(found)


def test_a_speed_within_the_spread_is_called_unclear(compared: Comparison) -> None:
    found = replace(compared, ratio=Ratio.of([1.0, 1.0, 1.0], [0.5, 1.0, 1.1]))
    assert told(found).startswith("No clear speed-up")


def test_identical_pictures_at_a_higher_speed_are_said_to_be_identical(
    compared: Comparison,
) -> None:
    same = Score(psnr=math.inf, ssim=1.0, mae=0.0, max_error=0.0)
    pairs = tuple(replace(pair, score=same) for pair in compared.pairs)
    found = replace(compared, pairs=pairs, ratio=Ratio.of([2.0], [1.0]))
    assert "every picture is identical" in found.verdicts[0]


def test_a_pipeline_that_is_not_restored_exactly_is_reported(compared: Comparison) -> None:
    found = replace(compared, off_is_exact=False)
    assert "Switched off, the picture differs" in told(found)
    assert "Switched off, the picture differs" in compare_page.page(found)


def test_a_control_that_does_not_exist_is_explained(compared: Comparison) -> None:
    missing = Control(solver="multistep", unavailable="no counterpart of X is known")
    found = replace(compared, controls=(compared.controls[0], missing))
    assert "no counterpart of X is known" in str(found)
    assert len(compare_table.rows(found)) == 3
    assert "no counterpart of X is known" in compare_page.page(found)


def test_a_judge_sees_every_side_and_adds_its_columns(compared: Comparison) -> None:
    seen: list[int] = []

    def judge(shots: Any, images: Any) -> dict[str, float]:
        seen.append(len(images))
        return {"kind": 0.75}

    found = compared.judge(judge)
    assert seen == [2, 2, 2, 2]
    assert compare_table.header(found)[-1] == "kind"
    assert [row[-1] for row in compare_table.rows(found)] == ["75%"] * 4
    assert found.to_dict()["judged"]["fast"] == {"kind": 0.75}


@pytest.mark.parametrize(("shots", "rounds"), [([], 1), ([shot(0)], 0)])
def test_nothing_to_compare_is_refused(pipe: Any, shots: list[Shot], rounds: int) -> None:
    with pytest.raises(OptionError, match="at least one of each"):
        compare(pipe, shots, [ENGAGES], rounds=rounds)


class _Page(HTMLParser):
    """Collects what a page loads, and whether its tags are balanced."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Notes what a tag refers to."""
        self.loads += [str(value) for name, value in attrs if name in {"src", "href", "srcset"}]
        if tag not in {"meta", "img", "input", "br"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """Checks that the innermost open tag ends first."""
        assert self.open.pop() == tag


def test_the_page_needs_nothing_from_anywhere(compared: Comparison) -> None:
    page = compare_page.page(compared)
    parsed = _Page(page)
    assert parsed.open == []
    assert len(parsed.loads) == 2 * 5
    assert all(place.startswith("data:image/png;base64,") for place in parsed.loads)
    assert "http" not in re.sub(r'http-equiv="', "", page)
    assert "prefers-color-scheme: dark" in page


def test_the_page_shows_every_decision_with_its_reason(compared: Comparison) -> None:
    page = compare_page.page(compared)
    for report in compared.reports:
        for decision in report.decisions:
            assert decision.reason in page


def test_foreign_text_and_unknown_actions_do_no_harm(compared: Comparison) -> None:
    pair = compared.pairs[0]
    strange = Decision(step=0, branch="<i>", action="<script>", reason='"><script>alert(1)')
    report = replace(pair.reports[0], decisions=(strange,), warnings=("<b>careful",))
    shown = replace(pair.shot, prompt="<img src=x>")
    found = replace(compared, model="<m>", pairs=(replace(pair, shot=shown, reports=(report,)),))
    page = compare_page.page(found)
    assert _Page(page).open == []
    assert page.count("<script>") == 1
    for text in ("<img src=x>", "<m>", "<b>careful", "<i>"):
        assert text not in page


def test_the_folder_holds_lossless_pictures_and_the_record(
    compared: Comparison, tmp_path: Path
) -> None:
    page = compare_page.save(compared, tmp_path / "deep" / "out")
    names = {path.name for path in page.parent.iterdir()}
    kinds = ("plain", "fast", "difference", "own", "multistep")
    pictures = {f"{place:03d}_{kind}.png" for place in (0, 1) for kind in kinds}
    assert names == {"report.html", "report.json", *pictures}
    saved = Image.open(page.parent / "001_fast.png")
    assert metrics.score(saved, compared.pairs[1].fast).identical
    assert json.loads((page.parent / "report.json").read_text())["difference_gain"] >= 1


def test_a_folder_that_cannot_be_written_is_refused(compared: Comparison, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OptionError, match="Cannot write to"):
        compare_page.save(compared, tmp_path / "file")


@pytest.mark.parametrize(
    ("differences", "gain"),
    [([0.0], 32), ([0.01, 0.001], 32), ([0.1, 0.25], 4), ([0.9], 1), ([], 32)],
)
def test_one_gain_shows_all_but_the_largest_differences(
    differences: list[float], gain: int
) -> None:
    maps = [np.full((20, 20), value) for value in differences]
    assert compare_pictures.gain_for(maps) == gain
    for values in maps:
        values[0, 0] = 1.0
    assert compare_pictures.gain_for(maps) == gain


def test_the_difference_is_dark_where_nothing_differs_and_brightest_at_the_top() -> None:
    plain = np.zeros((4, 4, 3), np.uint8)
    fast = plain.copy()
    fast[0, 0, 1] = 51
    fast[0, 1, 2] = 255
    shown = compare_pictures.difference(plain, fast, gain=5)
    assert tuple(shown[0, 0]) == tuple(shown[0, 1]) == (252, 255, 164)
    assert tuple(shown[3, 3]) == (0, 0, 4)
    lightness = compare_pictures.heat(np.linspace(0, 1, 64)) @ np.array([0.3, 0.6, 0.1])
    assert (np.diff(lightness) > -0.5).all()


def test_grey_pictures_are_written_too() -> None:
    grey = Image.fromarray(np.arange(256, dtype=np.uint8).reshape(16, 16))
    content = compare_pictures.png(grey)
    assert content.startswith(b"\x89PNG")


def test_frames_of_a_clip_lie_on_one_sheet_row_by_row() -> None:
    clip = np.arange(5, dtype=np.uint8).reshape(5, 1, 1, 1) * np.ones((5, 2, 2, 3), dtype=np.uint8)
    drawn = np.asarray(Image.open(io.BytesIO(compare_pictures.png(clip))))
    assert drawn.shape == (4, 6, 3)
    assert drawn[::2, ::2, 0].tolist() == [[0, 1, 2], [3, 4, 0]]
    later = clip.copy()
    later[4] += 51
    apart = compare_pictures.apart(clip, later)
    assert apart[2:, 2:4] == pytest.approx(0.2)
    assert apart.sum() == pytest.approx(4 * 0.2)
