"""How the text of each task is made: `maker(rng, size)` gives prompt, answer and key.

The key says what counts as one problem when items are held out: addition is held out in both
orders of its operands, sorting in every order of its letters.
"""

import string
from random import Random
from typing import NamedTuple

from accel.zoo.language.words import FIRST_NAMES, LAST_NAMES, NOUNS

OPENING, CLOSING = "([{<", ")]}>"
NAME_SEPARATOR = ", "
_LETTERS = string.ascii_lowercase
_LETTERS_AND_DIGITS = string.ascii_lowercase + string.digits
_FEWEST_WORDS = 2
_MOST_LETTERS = 12
_POP = 0.4
_LOWEST_VALUE, _HIGHEST_VALUE = 10, 99
_MOST_QUESTIONS = 3


class Made(NamedTuple):
    """What a maker gives; `answer` is one right answer where several are."""

    prompt: str
    answer: str
    key: str


def copy(rng: Random, size: int) -> Made:
    """Repeat `size` letters, or half as many words; above 12 it is always `size` words."""
    if size > _MOST_LETTERS:
        text = " ".join(rng.sample(NOUNS, size))
    elif rng.random() < 1 / 2:
        text = " ".join(rng.sample(NOUNS, max(_FEWEST_WORDS, size // 2)))
    else:
        text = _string(rng, size)
    return Made(f"copy: {text}", text, text)


def replace(rng: Random, size: int) -> Made:
    """Put a letter in the place that is named, counted from 1."""
    text, place, new = _edit(rng, size)
    answer = text[: place - 1] + new + text[place:]
    return _keyed_by_prompt(f"replace: {place} of {text} by {new}", answer)


def replace_any(rng: Random, size: int) -> Made:
    """Put a letter in any one place; which is open, so that the places depend on each other."""
    text, place, new = _edit(rng, size)
    answer = text[: place - 1] + new + text[place:]
    return _keyed_by_prompt(f"replace-any: one of {text} by {new}", answer)


def insert(rng: Random, size: int) -> Made:
    """Put a letter before the place that is named."""
    text, place, new = _edit(rng, size)
    answer = text[: place - 1] + new + text[place - 1 :]
    return _keyed_by_prompt(f"insert: {new} before {place} of {text}", answer)


def remove(rng: Random, size: int) -> Made:
    """Leave out the letter in the place that is named."""
    text, place, _ = _edit(rng, size)
    return _keyed_by_prompt(f"remove: {place} of {text}", text[: place - 1] + text[place:])


def reverse(rng: Random, size: int) -> Made:
    """Letters and digits backwards."""
    text = _string(rng, size)
    return Made(f"reverse: {text}", text[::-1], text)


def sort(rng: Random, size: int) -> Made:
    """Distinct letters in alphabetical order."""
    letters = rng.sample(_LETTERS, size)
    answer = "".join(sorted(letters))
    return Made(f"sort: {''.join(letters)}", answer, answer)


def shuffle(rng: Random, size: int) -> Made:
    """Distinct letters in any order."""
    letters = rng.sample(_LETTERS, size)
    answer = "".join(rng.sample(letters, size))
    return Made(f"shuffle: {''.join(letters)}", answer, "".join(sorted(letters)))


def add(rng: Random, size: int) -> Made:
    """Two numbers of `size` digits: the carry into every column but the last, then the sum."""
    one, other = rng.randrange(10**size), rng.randrange(10**size)
    carries = "".join(
        str((one % 10**column + other % 10**column) // 10**column) for column in range(size, 0, -1)
    )
    low, high = sorted((one, other))
    prompt = f"add: {one:0{size}}+{other:0{size}}"
    return Made(prompt, f"{carries} {one + other:0{size + 1}}", f"{size} {low} {high}")


def lookup(rng: Random, size: int) -> Made:
    """The values of one to three out of `size` keys."""
    values = {noun: _value(rng) for noun in rng.sample(NOUNS, size)}
    asked = rng.sample(sorted(values), rng.randint(1, _MOST_QUESTIONS))
    pairs = ",".join(f"{noun}={value}" for noun, value in values.items())
    answer = ",".join(str(values[noun]) for noun in asked)
    return _keyed_by_prompt(f"lookup: {pairs} ? {','.join(asked)}", answer)


def brackets(rng: Random, size: int) -> Made:
    """What closes the brackets that are open after `size` of them."""
    text, expected = "", ""
    for place in range(size):
        last = place == size - 1
        if expected and rng.random() < _POP and not (last and len(expected) == 1):
            text, expected = text + expected[0], expected[1:]
        else:
            kind = rng.randrange(len(OPENING))
            text, expected = text + OPENING[kind], CLOSING[kind] + expected
    return Made(f"brackets: {text}", expected, text)


def json_object(rng: Random, size: int) -> Made:
    """A JSON object of `size` pairs, in their order."""
    values = {noun: _value(rng) for noun in rng.sample(NOUNS, size)}
    pairs = ",".join(f"{noun}={value}" for noun, value in values.items())
    members = ",".join(f'"{noun}":{value}' for noun, value in values.items())
    return _keyed_by_prompt(f"json: {pairs}", f"{{{members}}}")


def queue(rng: Random, size: int) -> Made:
    """Who stands in a waiting line of `size` people after one of them moved, left or came."""
    *line, comer = people(rng, size + 1)
    after, (first, second) = list(line), sorted(rng.sample(range(size), 2))
    event = rng.choice(("leaves", "last", "first", "behind", "swap"))
    if event == "leaves":
        said = f"{after.pop(first)} leaves"
    elif event == "swap":
        said = f"{line[first]} and {line[second]} swap"
        after[first], after[second] = line[second], line[first]
    else:
        places = {"first": 0, "last": size, "behind": first + 1}
        after.insert(places[event], comer)
        said = f"{comer} joins {event}" + (f" {line[first]}" if event == "behind" else "")
    prompt = f"queue: {NAME_SEPARATOR.join(line)}; {said}"
    return _keyed_by_prompt(prompt, NAME_SEPARATOR.join(after))


def lineup(rng: Random, size: int) -> Made:
    """People in any order; the two halves of a name depend on each other, and names on names."""
    names = people(rng, size)
    answer = NAME_SEPARATOR.join(rng.sample(names, size))
    return Made(f"lineup: {NAME_SEPARATOR.join(names)}", answer, NAME_SEPARATOR.join(sorted(names)))


def people(rng: Random, count: int) -> list[str]:
    """`count` people who share neither first nor last name."""
    firsts, lasts = rng.sample(FIRST_NAMES, count), rng.sample(LAST_NAMES, count)
    return [f"{first} {last}" for first, last in zip(firsts, lasts, strict=True)]


def _keyed_by_prompt(prompt: str, answer: str) -> Made:
    return Made(prompt, answer, prompt)


def _string(rng: Random, size: int) -> str:
    return "".join(rng.choices(_LETTERS_AND_DIGITS, k=size))


def _edit(rng: Random, size: int) -> tuple[str, int, str]:
    """Distinct letters, a place among them from 1, and one more letter."""
    *letters, new = rng.sample(_LETTERS, size + 1)
    return "".join(letters), rng.randint(1, size), new


def _value(rng: Random) -> int:
    return rng.randint(_LOWEST_VALUE, _HIGHEST_VALUE)
