"""Many ways to draw the same pictures, in turns, in pieces that may be hours apart.

A turn is one prompt with one seed, drawn by every side. What it gave is a line of a file, so a
benchmark goes on where it stopped. Speed is a ratio within a turn: before every few sides the
unaccelerated pipeline runs again, and they are compared with that run.
"""

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from torch import Tensor
from tqdm.auto import tqdm

import accel.zoo
from accel.bench import Ratio, timed
from accel.metrics import Score, Summary, score
from accel.record import commit
from tests.benchmarks.peers import Contender
from tests.benchmarks.subjects import Subject, Task, draw

# Sides between two runs of the unaccelerated pipeline.
_GROUP = 6


class Turns:
    """Draws, times and scores one turn after the other.

    Args:
        subject: the model and its call.
        sides: what takes turns; names must differ.
        work: the file that keeps what turns gave.
        converged_steps: of the solution that counts as converged.
        device: where everything runs.
    """

    def __init__(
        self,
        subject: Subject,
        sides: Sequence[Contender],
        work: Path,
        converged_steps: int,
        device: str,
    ) -> None:
        names = [side.name for side in sides]
        assert len(set(names)) == len(names), "names of sides must differ"
        self.subject = subject
        self.sides = sides
        self.work = work
        self.converged_steps = converged_steps
        self.device = device
        self.pipe = loaded(subject.model, device)
        self._peers: dict[str, Any] = {}
        work.parent.mkdir(parents=True, exist_ok=True)

    def lines(self) -> list[dict[str, Any]]:
        """What the turns so far gave."""
        if not self.work.exists():
            return []
        return [json.loads(line) for line in self.work.read_text().splitlines()]

    def run(self, asked: Sequence[Task]) -> None:
        """Draws what is asked and has not been drawn, a side that is new to a turn included."""
        done = {(line["prompt"], line["seed"]): line for line in self.lines()}
        names = {side.name for side in self.sides}
        todo = [
            task
            for task in asked
            if not names <= set(done.get((task.prompt, task.seed), {"sides": ()})["sides"])
        ]
        if not todo:
            return
        # Peers load and compile things at first use.
        for side in self.sides:
            self._draw(side, todo[0])
        for task in tqdm(todo, desc=self.subject.model):
            known = done.get((task.prompt, task.seed), {"sides": {}})["sides"]
            sides = [side for side in self.sides if side.name not in known]
            done[task.prompt, task.seed] = {
                "prompt": task.prompt,
                "seed": task.seed,
                "commit": commit(),
                "sides": {**known, **dict(self._turn(sides, task))},
            }
            self._save(list(done.values()))

    def _save(self, lines: Sequence[dict[str, Any]]) -> None:
        fresh = self.work.with_suffix(".tmp")
        fresh.write_text("".join(json.dumps(line) + "\n" for line in lines))
        fresh.replace(self.work)

    def _turn(self, sides: Sequence[Contender], task: Task) -> Iterator[tuple[str, dict[str, Any]]]:
        converged = draw(self.subject, self.pipe, task, self.converged_steps)
        for group in batched_sides(sides):
            plain, plain_s = self._draw(None, task)
            for side in group:
                picture, seconds = self._draw(side, task)
                yield (
                    side.name,
                    {
                        "plain_s": plain_s,
                        "seconds": seconds,
                        "to_unaccelerated": score(plain, picture).to_dict(),
                        "to_converged": score(converged, picture).to_dict(),
                        "right": self.subject.right(picture, task.wanted),
                        "facts": side.facts(),
                    },
                )

    def _pipe(self, side: Contender | None) -> Any:
        """The pipeline itself for ours; one of their own for peers, whose removal leaves traces."""
        if side is None or not side.peer:
            return self.pipe
        if side.peer not in self._peers:
            self._peers[side.peer] = loaded(self.subject.model, self.device)
        return self._peers[side.peer]

    def _draw(self, side: Contender | None, task: Task) -> tuple[Tensor, float]:
        # Installing and removing is not part of generating, so only the inside is timed.
        made: list[Tensor] = []
        pipe = self._pipe(side)
        with nullcontext() if side is None else side.on(pipe):
            steps = None if side is None else side.steps
            taken = timed(lambda: made.append(draw(self.subject, pipe, task, steps)))
        return made[0], taken


def batched_sides(sides: Sequence[Contender]) -> Iterator[Sequence[Contender]]:
    """Groups of neighbours that are compared with one run of the unaccelerated pipeline."""
    for start in range(0, len(sides), _GROUP):
        yield sides[start : start + _GROUP]


def loaded(model: str, device: str) -> Any:
    """A fresh copy of the model."""
    pipe = accel.zoo.load(model).to(device)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def rows(lines: Sequence[dict[str, Any]], sides: Sequence[Contender]) -> list[dict[str, Any]]:
    """What all turns say of each side."""
    found = []
    for side in sides:
        turns = [line["sides"][side.name] for line in lines if side.name in line["sides"]]
        if turns:
            found.append({"name": side.name, "family": side.family, **_row(turns)})
    return found


def _row(turns: Sequence[dict[str, Any]]) -> dict[str, Any]:
    def judged(what: str) -> float:
        hits = [hit for turn in turns for hit in turn["right"][what]]
        return sum(hits) / len(hits)

    return {
        "turns": len(turns),
        "speedup": Ratio.of(
            [turn["plain_s"] for turn in turns], [turn["seconds"] for turn in turns]
        ).to_dict(),
        "to_unaccelerated": _summary(turns, "to_unaccelerated"),
        "to_converged": _summary(turns, "to_converged"),
        "right": {what: judged(what) for what in turns[0]["right"]},
        "facts": turns[-1]["facts"],
    }


def _summary(turns: Sequence[dict[str, Any]], to: str) -> dict[str, Any]:
    scores = [{**turn[to]} for turn in turns]
    for entry in scores:
        entry.pop("identical")
        entry["psnr"] = math.inf if entry["psnr"] is None else entry["psnr"]
    return Summary.of(Score(**entry) for entry in scores).to_dict()
