"""Measure a language model of the zoo: `python -m accel.zoo.language.evaluate tiny-llada`.

Accuracy of each task on the 2,000 held-out items, decoded greedily in blocks at 1, 2, 4 and 8
tokens a step. This curve is what accelerated decoding must beat. `--run FOLDER` measures what a
training has written so far.
"""

import argparse
import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from accel.record import write_record
from accel.zoo.catalogue import load
from accel.zoo.language.blueprint import SHAPES
from accel.zoo.language.decode import Plan, decode
from accel.zoo.language.graders import count_right
from accel.zoo.language.loading import LanguageModel, load_language
from accel.zoo.language.tasks import HELD_OUT_COUNT, Item, sample_items
from accel.zoo.language.vocabulary import END_ID, answer_text, encode_answers, encode_prompts

TOKENS_PER_STEP = (1, 2, 4, 8)
SHORT_ROOM, LONG_ROOM = 32, 96
BATCH = 64
RECORD = Path("tests/benchmarks/records")
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


def main() -> None:
    """Decode at every number of tokens a step, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=list(SHAPES))
    parser.add_argument("--items", type=int, default=HELD_OUT_COUNT)
    parser.add_argument("--tokens-per-step", type=int, nargs="+", default=TOKENS_PER_STEP)
    parser.add_argument("--run", type=Path, help="what train wrote; without it, the zoo's model")
    parser.add_argument("--out", type=Path, default=RECORD)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    name = options.name
    language = load(name) if options.run is None else load_language(options.run / name)
    items = sample_items(options.items)
    config = {
        "model": name,
        "items": len(items),
        "dtype": str(language.model.dtype).removeprefix("torch."),
        "gen_length": [SHORT_ROOM, LONG_ROOM],
        "batch": BATCH,
        "parameters": sum(weight.numel() for weight in language.model.parameters()),
    }
    results: dict[str, object] = {}
    # Written after every stage: an interrupted evaluation keeps what it has measured.
    for count in options.tokens_per_step:
        results[str(count)] = found = figures(answer(language, items, count))
        log.info("%d tokens a step: %s", count, found)
        path = options.out / f"zoo-{name}.json"
        write_record(path, f"zoo {name}", config, [0], {"tokens_per_step": results})


if __name__ == "__main__":
    main()
