"""What a policy learns from computed calls, kept for the generations that follow."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass(slots=True)
class Lesson:
    """Numbers of one guidance branch: where they were taken, and device scalars read only later."""

    places: list[float] = field(default_factory=list)
    scalars: list[Tensor] = field(default_factory=list)

    def note(self, place: float, *scalars: Tensor) -> None:
        """Adds what was seen at one evaluation."""
        self.places.append(place)
        self.scalars.append(torch.stack([scalar.detach().float() for scalar in scalars]))

    def rows(self) -> list[tuple[float, ...]]:
        """Place and numbers of every evaluation; waits for the device once."""
        if not self.scalars:
            return []
        found = torch.stack(self.scalars).tolist()
        return [(place, *numbers) for place, numbers in zip(self.places, found, strict=True)]


@dataclass(slots=True)
class Learnt:
    """Lessons by guidance branch, over generations, and what was made of them.

    `only_learn` keeps everything computed, however much is known.
    """

    only_learn: bool = False
    lessons: dict[str, list[Lesson]] = field(default_factory=dict)
    _made: dict[str, tuple[int, Any]] = field(default_factory=dict)

    def keep(self, branch: str, lesson: Lesson) -> None:
        """Keeps a generation's lesson, from its first number on."""
        lessons = self.lessons.setdefault(branch, [])
        if not any(lesson is known for known in lessons):
            lessons.append(lesson)

    def known(self, branch: str, current: Lesson, make: Callable[[list[Lesson]], Any]) -> Any:
        """What `make` makes of the earlier generations' lessons, or None where there are none."""
        if self.only_learn:
            return None
        earlier = [lesson for lesson in self.lessons.get(branch, ()) if lesson is not current]
        count, made = self._made.get(branch, (0, None))
        if len(earlier) != count:
            made = make(earlier)
            self._made[branch] = (len(earlier), made)
        return made

    def everything(self) -> list[Lesson]:
        """All lessons of all branches."""
        return [lesson for lessons in self.lessons.values() for lesson in lessons]
