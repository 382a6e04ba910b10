"""Reports: round trip, plain words, numbers."""

import json

import torch

from accel.report import Decision, Report, Timeline, versions


def report():
    timeline = Timeline("Toy", ("Method()",), 3)
    timeline.calls = 2
    timeline.add(Decision(step=0, branch="0", action="computed", reason="first", blocks_run=3))
    timeline.measure_later("error", torch.tensor(0.25))
    timeline.add(
        Decision(
            step=1,
            branch="0",
            action="reused",
            reason="<same>",
            value=0.5,
            blocks_run=1,
            blocks_skipped=2,
        )
    )
    return timeline.finish(2, 2)


def test_json_round_trips():
    first = report()
    assert Report.from_dict(json.loads(first.to_json())) == first


def test_counts_follow_from_the_decisions():
    made = report()
    assert (made.reused, made.engaged, made.blocks_run, made.blocks_skipped) == (1, True, 4, 2)
    assert made.skipped_share == 2 / 6
    assert made.estimated_error == 0.25


def test_an_empty_report_says_what_to_do():
    assert "call the pipeline" in str(Report())
    assert "call the pipeline" in Report()._repr_html_()
    assert Report().skipped_share == 0
    assert Report().estimated_error is None


def test_the_table_names_what_happened():
    text = str(report())
    for part in ("Toy", "Method()", "1 computed, 1 reused", "2 skipped (33%)", "0.2500"):
        assert part in text


def test_html_is_escaped():
    made = Report(model="<b>", calls=1)
    assert "<b>" not in made._repr_html_()


def test_a_generation_that_stopped_early_shows_both_counts():
    assert "2 of 9" in str(Report(model="Toy", steps=2, num_steps=9, calls=2))


def test_versions_name_what_a_measurement_depends_on():
    assert {"python", "torch", "diffusers"} <= set(versions())
