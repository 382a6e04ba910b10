"""The language tasks: right answers, wrong ones, what is held out, and the tokenizer."""

import itertools
import json
import random
from collections import Counter
from pathlib import Path

import pytest

from accel.errors import OptionError
from accel.zoo.language.graders import count_right, is_right
from accel.zoo.language.tasks import TASKS, Item, random_item, sample_items, task_named
from accel.zoo.language.vocabulary import (
    END_ID,
    MASK_ID,
    PAD_ID,
    UNKNOWN_ID,
    answer_text,
    encode_answers,
    encode_prompts,
    language_tokenizer,
)

HELD_OUT = sample_items()


def solved(item: Item) -> str:
    """The answer to a prompt, worked out from its text alone."""
    head, _, body = item.prompt.partition(": ")
    return SOLVERS[head](body)


def edited(body: str) -> tuple[int, str, str]:
    """Place from 0, text and letter of "3 of abc by x" or "x before 3 of abc"."""
    before, _, after = body.partition(" of ")
    text, _, new = after.partition(" by ")
    new, _, place = (new, "", before) if new or " before " not in before else before.partition(" ")
    return int(place.removeprefix("before ")) - 1, text, new


def replaced(body: str) -> str:
    place, text, new = edited(body)
    letters = list(text)
    letters[place] = new
    return "".join(letters)


def inserted(body: str) -> str:
    place, text, new = edited(body)
    letters = list(text)
    letters.insert(place, new)
    return "".join(letters)


def removed(body: str) -> str:
    place, text, _ = edited(body)
    letters = list(text)
    del letters[place]
    return "".join(letters)


def added(body: str) -> str:
    one, other = body.split("+")
    carries, carry = [], 0
    for first, second in zip(reversed(one), reversed(other), strict=True):
        carry = (int(first) + int(second) + carry) // 10
        carries.insert(0, str(carry))
    return f"{''.join(carries)} {str(int(one) + int(other)).zfill(len(one) + 1)}"


def looked_up(body: str) -> str:
    pairs, asked = body.split(" ? ")
    table = dict(pair.split("=") for pair in pairs.split(","))
    return ",".join(table[key] for key in asked.split(","))


def closed(body: str) -> str:
    partner, open_ones = dict(zip("([{<", ")]}>", strict=True)), []
    for letter in body:
        if letter in partner:
            open_ones.append(partner[letter])
        else:
            assert open_ones.pop() == letter
    assert open_ones
    return "".join(reversed(open_ones))


def as_json(body: str) -> str:
    table = {key: int(value) for key, value in (pair.split("=") for pair in body.split(","))}
    return json.dumps(table, separators=(",", ":"))


def after_event(body: str) -> str:
    before, said = body.split("; ")
    line = before.split(", ")
    if said.endswith(" leaves"):
        line.remove(said.removesuffix(" leaves"))
    elif said.endswith(" swap"):
        first, second = (line.index(name) for name in said.removesuffix(" swap").split(" and "))
        line[first], line[second] = line[second], line[first]
    else:
        comer, where = said.split(" joins ")
        places = {"last": len(line), "first": 0}
        line.insert(
            places[where] if where in places else line.index(where.removeprefix("behind ")) + 1,
            comer,
        )
    return ", ".join(line)


SOLVERS = {
    "copy": lambda body: body,
    "replace": replaced,
    "reverse": lambda body: "".join(reversed(body)),
    "sort": lambda body: "".join(sorted(body)),
    "insert": inserted,
    "remove": removed,
    "add": added,
    "lookup": looked_up,
    "brackets": closed,
    "json": as_json,
    "queue": after_event,
}


@pytest.fixture(scope="module")
def tokenizer():
    return language_tokenizer()


def test_every_deterministic_answer_follows_from_its_prompt() -> None:
    checked = [item for item in HELD_OUT if item.task in SOLVERS]
    assert {item.task for item in checked} == {n for n, task in TASKS.items() if task.parallel_safe}
    for item in checked:
        assert solved(item) == item.answer, item.prompt


def test_given_answers_are_right_and_damaged_ones_are_wrong() -> None:
    for item in HELD_OUT:
        assert is_right(item, item.answer)
        assert not is_right(item, item.answer[:-1])
        assert not is_right(item, item.answer + " ")
        assert not is_right(item, "")
        other = "b" if item.answer[0] == "a" else "a"
        assert not is_right(item, other + item.answer[1:])


def test_deterministic_answers_in_another_order_are_wrong() -> None:
    for item in HELD_OUT:
        turned = item.answer[::-1]
        if TASKS[item.task].parallel_safe and turned != item.answer:
            assert not is_right(item, turned), item


def test_every_permutation_answers_a_shuffle_and_nothing_else() -> None:
    item = Item("shuffle", "shuffle: abcd", "abcd", "abcd")
    answers = {"".join(letters) for letters in itertools.product("abcde", repeat=4)}
    right = {text for text in answers if is_right(item, text)}
    assert right == {"".join(letters) for letters in itertools.permutations("abcd")}


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("xbc", True),
        ("axc", True),
        ("abx", True),
        ("abc", False),
        ("xxc", False),
        ("xabc", False),
        ("bxc", False),
    ],
)
def test_exactly_one_letter_is_replaced_anywhere(text: str, right: bool) -> None:
    assert is_right(Item("replace-any", "replace-any: one of abc by x", "xbc", ""), text) == right


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("Ada Berg, Emil Roth", True),
        ("Emil Roth, Ada Berg", True),
        ("Emil Berg, Ada Roth", False),
        ("Ada Berg, Ada Berg", False),
        ("Ada Berg", False),
        ("Ada Berg,Emil Roth", False),
    ],
)
def test_a_lineup_holds_everybody_once_by_full_name(text: str, right: bool) -> None:
    assert is_right(Item("lineup", "lineup: Ada Berg, Emil Roth", "", ""), text) == right


def test_answers_are_counted_by_task() -> None:
    items = [Item("copy", "copy: ab", "ab", ""), Item("sort", "sort: ba", "ab", "")]
    assert count_right([*items, items[0]], ["ab", "ba", "b"]) == {"copy": (1, 2), "sort": (0, 1)}


def test_held_out_items_are_fixed_distinct_and_spread_over_the_tasks() -> None:
    assert sample_items(2000) == HELD_OUT
    assert HELD_OUT[:50] == sample_items(50)
    assert len({item.prompt for item in HELD_OUT}) == 2000
    counts = Counter(item.task for item in HELD_OUT)
    assert set(counts) == set(TASKS)
    assert set(counts.values()) == {142, 143}


def test_held_out_problems_are_never_trained_on() -> None:
    held_out = {(item.task, item.key) for item in HELD_OUT}
    rng = random.Random(1)
    for name in TASKS:
        trained = {(name, random_item(rng, name).key) for _ in range(500)}
        assert held_out.isdisjoint(trained)
    assert held_out.isdisjoint({(item.task, item.key) for item in sample_items(1000, "train")})


@pytest.mark.parametrize(
    ("one", "other"),
    [("add: 17+42", "add: 42+17"), ("sort: bca", "sort: abc"), ("shuffle: bca", "shuffle: abc")],
)
def test_two_wordings_of_one_problem_are_held_out_together(one: str, other: str) -> None:
    rng, keys = random.Random(0), {}
    task = one.partition(":")[0]
    sizes = {"add": 2}.get(task, 3)
    while len(keys) < 2:
        # Few enough letters and digits that both wordings turn up.
        made = TASKS[task].make(_Small(rng), sizes)
        if made.prompt in {one, other}:
            keys[made.prompt] = made.key
    assert keys[one] == keys[other]


class _Small(random.Random):
    """Draws from the first three letters, and 17 or 42 for numbers."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng.random())

    def sample(self, population, k):
        return super().sample(population[:3], k)

    def randrange(self, *args):
        return self.choice((17, 42))


def test_enough_items_have_long_prompts_or_long_answers(tokenizer) -> None:
    prompts = encode_prompts(tokenizer, [item.prompt for item in HELD_OUT])
    answers = encode_answers(tokenizer, [item.answer for item in HELD_OUT])
    assert sum(len(ids) >= 256 for ids in prompts) >= 60
    assert sum(len(ids) >= 64 for ids in answers) >= 120
    for item, prompt, answer in zip(HELD_OUT, prompts, answers, strict=True):
        assert item.long == (len(prompt) >= 256 or len(answer) >= 64)
        assert len(answer) < (96 if item.long else 32)


def test_the_tokenizer_gives_every_prompt_and_answer_back(tokenizer) -> None:
    prompts = encode_prompts(tokenizer, [item.prompt for item in HELD_OUT])
    answers = encode_answers(tokenizer, [item.answer for item in HELD_OUT])
    for item, prompt, answer in zip(HELD_OUT, prompts, answers, strict=True):
        assert tokenizer.decode(prompt, skip_special_tokens=True) == item.prompt
        assert answer_text(tokenizer, [*answer, END_ID, PAD_ID]) == item.answer
        assert not {MASK_ID, UNKNOWN_ID, PAD_ID} & {*prompt, *answer}


def test_names_are_two_tokens_and_letters_are_one_each(tokenizer) -> None:
    pieces = tokenizer.tokenize("queue: Ada Berg, Emil Roth; Ada Berg leaves")
    assert pieces[1:6] == ["Ada", " Berg", ", ", "Emil", " Roth"]
    assert tokenizer.tokenize("sort: qbza") == ["sort: ", "q", "b", "z", "a"]


def test_auto_tokenizer_loads_the_saved_tokenizer(tokenizer, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path, local_files_only=True)
    prompts = [item.prompt for item in HELD_OUT[:100]]
    assert loaded(prompts).input_ids == tokenizer(prompts).input_ids
    assert loaded.mask_token_id == MASK_ID
    padded = loaded(prompts[:2], padding=True).input_ids
    assert [row[-1] for row in padded] == [loaded.sep_token_id] * 2


def test_an_answer_without_an_end_is_read_whole(tokenizer) -> None:
    assert answer_text(tokenizer, encode_answers(tokenizer, ["abc"])[0]) == "abc"


def test_unknown_characters_are_named(tokenizer) -> None:
    with pytest.raises(OptionError, match=r"holds 'ß', 'é'; .* printable ASCII"):
        encode_prompts(tokenizer, ["copy: abc", "copy: éßé"])


def test_prompts_that_are_too_long_are_refused(tokenizer) -> None:
    with pytest.raises(OptionError, match=r"has 353 tokens; .* 352 at most"):
        encode_prompts(tokenizer, ["copy: " + "a" * 350])
    assert len(encode_prompts(tokenizer, ["copy: " + "a" * 349])[0]) == 352


def test_unknown_tasks_are_answered_with_the_nearest() -> None:
    with pytest.raises(OptionError, match=r"no task 'shuffel'; .* Did you mean 'shuffle'"):
        task_named("shuffel")
    with pytest.raises(OptionError, match="no task"):
        random_item(random.Random(0), "riddle")
    with pytest.raises(OptionError, match="no task"):
        is_right(Item("riddle", "", "", ""), "")


def test_tasks_without_long_items_say_which_have_them() -> None:
    with pytest.raises(OptionError, match="sort has no long items; copy, lookup, json, queue have"):
        random_item(random.Random(0), "sort", long=True)


@pytest.mark.parametrize("count", [0, 4097])
def test_item_counts_out_of_range_are_refused(count: int) -> None:
    with pytest.raises(ValueError, match="4096"):
        sample_items(count)


def test_reach_limits_sizes() -> None:
    rng = random.Random(0)
    lengths = {len(random_item(rng, "reverse", reach=0.0).answer) for _ in range(50)}
    assert lengths == {4}
    lengths = {len(random_item(rng, "reverse", reach=0.5).answer) for _ in range(300)}
    assert lengths == {4, 5, 6, 7}
