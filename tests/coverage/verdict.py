"""What accel makes of a denoiser class, and the table of all of them in caching/MODELS.md."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

import accel
from accel.errors import AccelUnsupportedError
from accel.models import find_spec, known_sites
from accel.probe import Probe
from accel.sites import BlockIO, ModelSites
from caching import FirstBlockCache
from tests.coverage.classes import model_class, model_classes
from tests.coverage.entries import ENTRIES, UNCALLED

TABLE = Path(__file__).resolve().parents[2] / "caching" / "MODELS.md"

_HEAD = """# Models

Every denoiser class of diffusers {version}, and whether the methods that skip transformer blocks
(`FirstBlockCache`, `DBCache`) work on it. `python -m tests.benchmarks.coverage` writes this page
from what a tiny model of each class does; a test fails when the two differ.

**{passed}** of {total} classes work: {listed} by the table in [accel/specs.py](../accel/specs.py),
{inferred} worked out from their structure and first call, which a short second run has to prove.
The others are refused by name, for the reason given. ControlNets, encoders and autoencoders denoise
nothing and are not listed; what a ControlNet adds between the blocks is part of what is cached.

The streams are the arguments by which blocks take what they hand on, the picture or sound first.

| Class | Known | Streams | Lists of blocks, in running order |
| --- | --- | --- | --- |
"""

_REASONS = (
    (re.compile(r"leaves \w+ alone: (.*)\.$"), None),
    (
        re.compile(r"is a UNet|has no stack of transformer blocks"),
        "it is a UNet: no stack of blocks",
    ),
    (re.compile(r"could not work it out: (.*?)\. Add to"), None),
    (re.compile(r"cannot skip its blocks: (.*)\.$"), None),
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What accel makes of one class.

    Attributes:
        known: "by table", "worked out" or "refused".
        streams: how the blocks carry them; lists: where the blocks are; both empty if refused.
        reason: why it is refused, else empty.
    """

    name: str
    known: str
    streams: str = ""
    lists: str = ""
    reason: str = ""

    @property
    def row(self) -> str:
        """The line of the table."""
        if self.known == "refused":
            return f"| `{self.name}` | refused | | {self.reason} |"
        return f"| `{self.name}` | {self.known} | {self.streams} | {self.lists} |"


def uncalled(name: str) -> nn.Module:
    """Returns a model of a class that is refused unseen, whose weights take no memory."""
    with torch.device("meta"):
        model: nn.Module = model_class(name)(**UNCALLED[name])
    return model


@torch.no_grad()
def inferred_sites(model: nn.Module, inputs: dict[str, Any]) -> ModelSites:
    """Returns the sites as they are worked out, whether the model is in the table or not."""
    with Probe(model) as probe:
        output = model(**inputs)
    return probe.sites(lambda: model(**inputs), output)


def sites_of(model: nn.Module, inputs: dict[str, Any]) -> ModelSites:
    """Returns the sites that methods get of this model, after a call of it if it takes one."""
    spec = find_spec(model)
    return inferred_sites(model, inputs) if spec is None else known_sites(model, spec)


def verdict(name: str) -> Verdict:
    """Returns what accel makes of a class."""
    try:
        if name in UNCALLED:
            accel.patch(uncalled(name), FirstBlockCache())
        model = ENTRIES[name].make()
        sites = sites_of(model, ENTRIES[name].inputs())
    except AccelUnsupportedError as error:
        return Verdict(name, "refused", reason=_reason(str(error)))
    return passed(model, sites)


def passed(model: nn.Module, sites: ModelSites) -> Verdict:
    """Returns the verdict on a model with these sites."""
    known = "worked out" if find_spec(model) is None else "by table"
    return Verdict(type(model).__name__, known, _streams(sites), _lists(sites))


def _reason(message: str) -> str:
    for pattern, words in _REASONS:
        if match := pattern.search(message):
            return words or match[1]
    return message


def _unique(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(texts))


def _streams(sites: ModelSites) -> str:
    return ", then ".join(_unique(_names(site.io) for site in sites.blocks))


def _names(io: BlockIO) -> str:
    beside = "" if io.context_index is None else f" and `{io.context}`"
    return f"`{io.hidden}`{beside}"


def _lists(sites: ModelSites) -> str:
    lists = _unique(site.path.rpartition(".")[0] for site in sites.blocks)
    return f"{len(lists)}: {', '.join(f'`{name}`' for name in lists)}"


def document(verdicts: Iterable[Verdict], version: str) -> str:
    """Returns the whole page."""
    found = list(verdicts)
    known = [verdict.known for verdict in found]
    head = _HEAD.format(
        version=version,
        passed=len(known) - known.count("refused"),
        total=len(known),
        listed=known.count("by table"),
        inferred=known.count("worked out"),
    )
    return head + "".join(f"{verdict.row}\n" for verdict in found)


def every_verdict() -> Iterable[Verdict]:
    """Yields the verdict of every class, by name."""
    return map(verdict, model_classes())
