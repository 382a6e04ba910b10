"""Every denoiser class of diffusers: FirstBlockCache works on it, or it is refused by name."""

import math
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import diffusers
import pytest
import torch
from torch import Tensor, nn

import accel
from accel.errors import AccelUnsupportedError
from accel.models import find_spec, known_sites
from accel.sites import ModelSites, Site
from caching import DBCache, FirstBlockCache
from tests.coverage.classes import model_classes
from tests.coverage.entries import ENTRIES, UNCALLED
from tests.coverage.entry import Entry
from tests.coverage.verdict import (
    TABLE,
    Verdict,
    document,
    inferred_sites,
    passed,
    sites_of,
    uncalled,
    verdict,
)
from tests.tiny.observe import counting, traces

SKIPPING = FirstBlockCache(threshold=math.inf, warmup=1, tail=0, min_steps=0, max_streak=None)
STEPS = 3

_PAGE = TABLE.read_text("utf-8")
_ROWS = {row.split("`")[1]: row for row in _PAGE.splitlines() if row.startswith("| `")}
_REFUSED = [name for name, row in _ROWS.items() if "| refused |" in row]
_WORKING = [entry for name, entry in ENTRIES.items() if name not in _REFUSED]
_IN_TABLE = [name for name, row in _ROWS.items() if "| by table |" in row]

# What one call shows of these is less than the table knows: the names of Cosmos 3's streams do not
# tell the picture, and Latte's two lists run in turns.
_BEYOND_INFERENCE = {"Cosmos3OmniTransformer", "LatteTransformer3DModel"}


def _flat(output: Any) -> list[Tensor]:
    if isinstance(output, Tensor):
        return [output]
    parts = output.values() if isinstance(output, dict) else output or ()
    return [tensor for part in parts for tensor in _flat(part)]


@torch.no_grad()
def _outputs(
    model: nn.Module, calls: list[dict[str, Any]], handle: accel.Patch | None = None
) -> list[list[Tensor]]:
    """Returns what the model makes of these calls, as one generation if it is patched."""
    if handle is None:
        return [_flat(model(**call)) for call in calls]
    outputs = []
    with handle.generation(len(calls)):
        for call in calls:
            outputs.append(_flat(model(**call)))
            handle.advance()
    return outputs


def _equal(left: list[Tensor], right: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def _insides(blocks: Sequence[Site]) -> list[nn.Module]:
    """Returns the parts of these blocks that have no parts, which a skipped block does not call."""
    parts = (part for site in blocks for part in site.module.modules())
    return [part for part in parts if not list(part.children())]


def _check_neutral(
    model: nn.Module, calls: list[dict[str, Any]], plain: list[list[Tensor]]
) -> None:
    """Never reusing, twice over, is what the model does by itself, bit for bit."""
    before = traces(model)
    with accel.patch(model, SKIPPING.neutral()) as handle:
        for _ in range(2):
            patched = _outputs(model, calls, handle)
            assert all(map(_equal, patched, plain))
            assert handle.report.reused == 0
    assert traces(model) == before


def _check_engaged(
    model: nn.Module,
    calls: list[dict[str, Any]],
    plain: list[list[Tensor]],
    blocks: Sequence[Site],
) -> None:
    """Reusing runs one block a step, and repeats an unchanged step as it was."""
    before, skippable = traces(model), blocks[1:]
    handle = accel.patch(model, SKIPPING)
    with counting(_insides(skippable)) as ran:
        _outputs(model, calls[:1], handle)
        once = ran()
        moved = _outputs(model, calls, handle)
        assert ran() == 2 * once > 0
    assert handle.report.blocks_skipped == len(skippable) * (STEPS - 1)
    assert _equal(moved[0], plain[0])
    for reused, computed in zip(moved[1:], plain[1:], strict=True):
        assert all(tensor.isfinite().all() for tensor in reused)
        assert not _equal(reused, computed)
    for step in _outputs(model, calls[:1] * STEPS, handle):
        for reused, computed in zip(step, plain[0], strict=True):
            torch.testing.assert_close(reused, computed, rtol=1e-3, atol=1e-4)
    handle.unpatch()
    assert traces(model) == before
    assert _equal(_outputs(model, calls[-1:])[0], plain[-1])


@pytest.mark.parametrize("entry", _WORKING, ids=str)
def test_first_block_cache_works(entry: Entry) -> None:
    model, inputs = entry.make(), entry.inputs()
    calls = [entry.at(inputs, step) for step in range(STEPS)]
    plain = _outputs(model, calls)
    sites = sites_of(model, inputs)
    assert passed(model, sites).row == _ROWS[entry.name]
    _check_neutral(model, calls, plain)
    _check_engaged(model, calls, plain, sites.blocks)


@pytest.mark.parametrize("name", _REFUSED)
def test_a_class_without_use_for_it_is_refused_by_name_and_left_alone(name: str) -> None:
    assert verdict(name).row == _ROWS[name]
    model = uncalled(name) if name in UNCALLED else ENTRIES[name].make()
    before = traces(model)
    with pytest.raises(AccelUnsupportedError, match=name), accel.patch(model, SKIPPING) as handle:
        # What nothing but a call can show is refused then.
        _outputs(model, [ENTRIES[name].inputs()], handle)
    assert {path: trace[1] for path, trace in traces(model).items()} == {
        path: trace[1] for path, trace in before.items()
    }


def _shape(sites: ModelSites) -> list[tuple[Any, list[str]]]:
    """Returns the paths of the blocks, in runs of blocks that share a residual."""
    runs = groupby(sites.blocks, key=lambda site: (site.io, site.segment))
    return [(io, [site.path for site in run]) for (io, _), run in runs]


@pytest.mark.parametrize("name", sorted(set(_IN_TABLE) - _BEYOND_INFERENCE))
def test_what_one_call_shows_is_what_the_table_says(name: str) -> None:
    model, inputs = ENTRIES[name].make(), ENTRIES[name].inputs()
    spec = find_spec(model)
    assert spec is not None
    known, found = known_sites(model, spec), inferred_sites(model, inputs)
    assert _shape(found) == _shape(known)
    assert found.direct == known.direct


def test_streams_without_telling_names_are_refused_where_the_table_does_not_help() -> None:
    entry = ENTRIES["Cosmos3OmniTransformer"]
    with pytest.raises(AccelUnsupportedError, match=r"'und_seq' and 'gen_seq'.*do not tell"):
        inferred_sites(entry.make(), entry.inputs())


def test_of_lists_that_run_in_turns_the_larger_one_is_found() -> None:
    entry = ENTRIES["LatteTransformer3DModel"]
    found = inferred_sites(entry.make(), entry.inputs())
    assert [site.path for site in found.blocks] == [f"transformer_blocks.{i}" for i in range(3)]


@pytest.mark.parametrize(
    ("head", "tail_blocks", "said"),
    [
        (1, 0, ""),
        (1, 1, "ends in another shape than the skippable blocks begin in"),
        (1, 2, ""),
        (2, 0, "head blocks changed the shape"),
        (3, 0, ""),
    ],
)
def test_blocks_in_turns_are_skipped_only_from_one_shape_to_the_same(
    head: int, tail_blocks: int, said: str
) -> None:
    entry = ENTRIES["LatteTransformer3DModel"]
    model, calls = entry.make(), [entry.inputs()] * 2
    plain = _outputs(model, calls)
    options = {"threshold": math.inf, "warmup": 1, "tail": 0, "min_steps": 0}
    with accel.patch(model, DBCache(head=head, tail_blocks=tail_blocks, **options)) as handle:
        outputs = _outputs(model, calls, handle)
    assert (handle.report.reused == 1) == (not said)
    assert said in " ".join(handle.report.warnings)
    torch.testing.assert_close(outputs[1], plain[1], rtol=1e-3, atol=1e-4)


def test_late_blocks_that_take_early_outputs_are_no_tail() -> None:
    model = ENTRIES["HunyuanDiT2DModel"].make()
    with pytest.raises(AccelUnsupportedError, match=r"tail_blocks is 1.*HunyuanDiT2DModel"):
        accel.patch(model, DBCache(tail_blocks=1))
    assert not accel.status(model).patched


def test_every_class_has_a_tiny_model_or_is_refused_unseen() -> None:
    assert set(ENTRIES) | set(UNCALLED) == set(model_classes())
    assert not set(ENTRIES) & set(UNCALLED)


def test_the_page_lists_every_class_and_counts_them_rightly() -> None:
    known = {name: row.split(" | ")[1] for name, row in _ROWS.items()}
    release = ".".join(diffusers.__version__.split(".")[:2])
    verdicts = [Verdict(name, word) for name, word in known.items()]
    head = document(verdicts, release).split("| `")[0]
    assert head + "".join(f"{row}\n" for row in _ROWS.values()) == _PAGE
    assert list(_ROWS) == list(model_classes())
    counts = (
        f"{len(_ROWS) - len(_REFUSED)} of the {len(_ROWS)} denoiser classes in diffusers {release}"
    )
    assert counts in (TABLE.parents[1] / "README.md").read_text("utf-8")
