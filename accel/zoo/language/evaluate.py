"""What `accel zoo eval` measures of a language model.

Accuracy of each task on the 2,000 held-out items, decoded greedily in blocks at 1, 2, 4 and 8
tokens a step. This curve is what accelerated decoding must beat.
"""

import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from accel.errors import OptionError
from accel.record import read_record, write_record
from accel.zoo.catalogue import load
from accel.zoo.language.decode import Plan, decode
from accel.zoo.language.graders import count_right
from accel.zoo.language.loading import LanguageModel
from accel.zoo.language.tasks import HELD_OUT_COUNT, Item, sample_items
from accel.zoo.language.vocabulary import END_ID, answer_text, encode_answers, encode_prompts

TOKENS_PER_STEP = (1, 2, 4, 8)
SHORT_ROOM, LONG_ROOM = 32, 96
BATCH = 64
Z_95 = 1.96

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Answered:
    """What was decoded: items, their texts, tokens of the answers with their end, and passes."""

    items: list[Item]
    texts: list[str]
    tokens: int
    forwards: int


def answer(language: LanguageModel, items: Sequence[Item], tokens_per_step: int) -> Answered:
    """Greedy answers to `items`, in an order of their own.

    An item has 32 tokens of room, or 96 where its right answer needs more than 32.
    """
    done = Answered([], [], 0, 0)
    for gen_length, part, prompts in _batches(language, items):
        plan = Plan(gen_length=gen_length, tokens_per_step=tokens_per_step)
        decoded = decode(language.model, prompts, plan)
        rows = decoded.tokens.tolist()
        texts = [answer_text(language.tokenizer, row) for row in rows]
        tokens = sum(len(row) - max(0, row.count(END_ID) - 1) for row in rows)
        done = Answered(
            [*done.items, *part],
            [*done.texts, *texts],
            done.tokens + tokens,
            done.forwards + int(decoded.forwards.sum()),
        )
    return done


def _batches(
    language: LanguageModel, items: Sequence[Item]
) -> Iterator[tuple[int, list[Item], list[list[int]]]]:
    """Room, items and prompts of equal room and about equal length."""
    prompts = encode_prompts(language.tokenizer, [item.prompt for item in items])
    answers = encode_answers(language.tokenizer, [item.answer for item in items])
    rooms = [SHORT_ROOM if len(ids) < SHORT_ROOM else LONG_ROOM for ids in answers]
    for room in (SHORT_ROOM, LONG_ROOM):
        of_room = [number for number, each in enumerate(rooms) if each == room]
        of_room.sort(key=lambda number: len(prompts[number]))
        for start in range(0, len(of_room), BATCH):
            numbers = of_room[start : start + BATCH]
            yield room, [items[n] for n in numbers], [prompts[n] for n in numbers]


def figures(answered: Answered) -> dict[str, object]:
    """Accuracy over all and by task, each with its 95% interval, and answer tokens per forward.

    Long items are counted in their task, and once more by themselves.
    """
    everything = count_right(answered.items, answered.texts)
    paired = list(zip(answered.items, answered.texts, strict=True))
    long = [(item, text) for item, text in paired if item.long]
    of_long = count_right([item for item, _ in long], [text for _, text in long])
    rights, totals = zip(*everything.values(), strict=True)
    return {
        "all": accuracy(sum(rights), sum(totals)),
        "tasks": {name: accuracy(*everything[name]) for name in sorted(everything)},
        "long": {name: accuracy(*of_long[name]) for name in sorted(of_long)},
        "tokens_per_forward": round(answered.tokens / answered.forwards, 4),
    }


def accuracy(right: int, total: int) -> dict[str, float]:
    """The share that is right, and Wilson's 95% interval about it."""
    share, z = right / total, Z_95
    middle = (share + z * z / (2 * total)) / (1 + z * z / total)
    reach = math.sqrt(share * (1 - share) / total + (z / (2 * total)) ** 2) * z
    reach /= 1 + z * z / total
    return {
        "accuracy": round(share, 4),
        "low": round(middle - reach, 4),
        "high": round(middle + reach, 4),
        "items": total,
    }


def run(name: str, count: int | None, out: Path, only: Sequence[str] | None) -> Path:
    """Measure at every number of tokens a step, or at those of `only`, and write the record.

    `count` limits how many items are taken. The record keeps what other numbers had given.

    Raises:
        OptionError: `only` names something else than a number of tokens from 1 up.
    """
    counts = _tokens_per_step(only)
    language = load(name)
    items = sample_items(min(HELD_OUT_COUNT, count or HELD_OUT_COUNT))
    config = {
        "model": name,
        "items": len(items),
        "dtype": str(language.model.dtype).removeprefix("torch."),
        "gen_length": [SHORT_ROOM, LONG_ROOM],
        "batch": BATCH,
        "parameters": sum(weight.numel() for weight in language.model.parameters()),
    }
    path = out / f"zoo-{name}.json"
    known = read_record(path)["results"]["tokens_per_step"] if only and path.exists() else {}
    # Written after every stage: an interrupted evaluation keeps what it has measured.
    for tokens in counts:
        known[str(tokens)] = found = figures(answer(language, items, tokens))
        log.info("%d tokens a step: %s", tokens, found)
        results = {"tokens_per_step": {key: known[key] for key in sorted(known, key=int)}}
        write_record(path, f"zoo {name}", config, [0], results)
    return path


def _tokens_per_step(only: Sequence[str] | None) -> Sequence[int]:
    if not only:
        return TOKENS_PER_STEP
    wrong = [part for part in only if not part.isdecimal() or int(part) < 1]
    if wrong:
        raise OptionError(
            f"--only got {', '.join(wrong)}; for a language model it takes numbers of tokens a "
            "step, for example --only 1 4."
        )
    return [int(part) for part in only]
