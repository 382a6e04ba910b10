"""Training of the language models: batches, noise, the loss, and going on from a checkpoint."""

from collections import Counter
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from accel.zoo.language import train as training
from accel.zoo.language.batches import (
    Batch,
    Recipe,
    draw_pool,
    mask_answers,
    mask_blocks,
)
from accel.zoo.language.blueprint import Shape, new_model
from accel.zoo.language.drive import Drive, aligned_logits
from accel.zoo.language.losses import masked_loss, noised
from accel.zoo.language.tasks import TASKS, Item, sample_items
from accel.zoo.language.train import Run, Sizes, task_weights, train
from accel.zoo.language.vocabulary import END_ID, MASK_ID, answer_text, language_tokenizer

PLAIN = Shape(hidden_size=64, intermediate_size=96, num_layers=2)
BLOCKS = Shape(hidden_size=64, intermediate_size=96, num_layers=2, block_length=4)
SHIFTED = Shape(hidden_size=64, intermediate_size=96, num_layers=2, logits_shifted=True)
ALIKE = dict.fromkeys(TASKS, 1.0)
FEW = Sizes(pool_items=24, batch_tokens=256)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def small_pool(reach: float = 1.0, seed: str = "test") -> list[Batch]:
    return draw_pool(Recipe(seed, ALIKE, reach, 400, 1024), language_tokenizer())


@pytest.fixture(scope="module")
def pool() -> list[Batch]:
    return small_pool()


def rows_of(pool: list[Batch]) -> list[tuple[str, str, str]]:
    """Task, prompt and answer of every row."""
    tokenizer, names = language_tokenizer(), tuple(TASKS)
    found = []
    for batch in pool:
        for ids, valid, task in zip(batch.canvas, batch.valid, batch.tasks, strict=True):
            kept = ids[valid].tolist()
            prompt = tokenizer.decode(kept[: -batch.gen_length], skip_special_tokens=True)
            found.append((names[task], prompt, answer_text(tokenizer, kept[-batch.gen_length :])))
    return found


def test_batches_hold_training_items_and_no_held_out_one(pool: list[Batch]) -> None:
    held_out = {item.prompt for item in sample_items(4096)}
    rows = rows_of(pool)
    assert len(rows) == 400
    assert {task for task, _, _ in rows} == set(TASKS)
    for task, prompt, answer in rows:
        assert prompt.startswith(f"{task}: ")
        assert prompt not in held_out
        assert answer
        if task == "copy":
            assert not Item(task, prompt, answer, answer).is_held_out()


def test_batches_keep_to_their_tokens_and_end_every_answer(pool: list[Batch]) -> None:
    for batch in pool:
        assert len(batch.canvas) == 1 or batch.canvas.numel() <= 1024
        assert (batch.canvas[:, -1] == END_ID).all()
        assert batch.valid[:, -batch.gen_length :].all()
    assert {batch.gen_length for batch in pool} == {16, 32, 64, 96}
    padding = sum(int((~batch.valid).sum()) for batch in pool)
    assert padding < 0.25 * sum(batch.canvas.numel() for batch in pool)


def test_equal_recipes_give_equal_pools_and_others_do_not() -> None:
    one, same, other = rows_of(small_pool()), rows_of(small_pool()), small_pool(seed="other")
    assert one == same
    assert one != rows_of(other)


def test_training_begins_with_small_sizes() -> None:
    tokenizer, widest = language_tokenizer(), {}
    for reach in (0.0, 0.4, 1.0):
        lookups = draw_pool(Recipe("x", {"lookup": 1.0}, reach, 200, 1024), tokenizer)
        widest[reach] = max(int(batch.valid.sum(1).max()) - batch.gen_length for batch in lookups)
    # Four and six pairs of five tokens, then long ones; a head, questions and marks besides.
    assert widest[0.0] <= 4 * 5 + 8 < widest[0.4] <= 6 * 5 + 8
    assert widest[1.0] > 256


def test_weights_decide_how_often_a_task_is_drawn() -> None:
    weights = {**dict.fromkeys(TASKS, 0.0), "sort": 3.0, "copy": 1.0}
    rows = rows_of(draw_pool(Recipe("x", weights, 1.0, 800, 1024), language_tokenizer()))
    counts = Counter(task for task, _, _ in rows)
    assert set(counts) == {"sort", "copy"}
    assert 500 < counts["sort"] < 700


def test_masks_weigh_one_over_their_share() -> None:
    noise = mask_answers(4000, 48, seeded())
    assert noise.masked.any(1).all()
    assert torch.equal(noise.weight > 0, noise.masked)
    # Summed over a row, weights of 1/u come to the row's length on average, whatever u was.
    assert noise.weight.sum(1).mean().item() == pytest.approx(48, rel=0.03)
    for row in noise.weight[:200]:
        assert len(set(row[row > 0].tolist())) == 1
    assert (noise.weight[noise.masked] >= 1).all()


def test_some_rows_are_masked_wholly_and_some_like_decoding_in_blocks() -> None:
    noise = mask_answers(4000, 96, seeded())
    share = noise.masked.float().mean(1)
    assert 0.05 < (share == 1).float().mean() < 0.2
    # Clean up to a window and masked behind it, with clean tokens inside the window as well.
    clean_start = ~noise.masked[:, :16].any(1)
    masked_end = noise.masked[:, -16:].all(1)
    assert 0.1 < (clean_start & masked_end).float().mean() < 0.35


def test_every_block_has_a_share_of_its_own() -> None:
    blocks = (torch.arange(64) // 8)[None].repeat(500, 1) + 3
    noise = mask_blocks(blocks, seeded())
    per_block = noise.weight.unflatten(1, (8, 8))
    for weights in per_block[:50].flatten(0, 1):
        assert len(set(weights[weights > 0].tolist())) <= 1
    assert noise.weight.sum(1).mean().item() == pytest.approx(64, rel=0.05)
    shares = noise.masked.float().unflatten(1, (8, 8)).mean(2)
    assert (shares[:, 0] - shares[:, 1]).abs().mean() > 0.2


def entropy(logits: Tensor, batch: Batch, noise) -> Tensor:
    """The weighted cross entropy from aligned logits of the answer tokens."""
    targets = batch.canvas[:, -batch.gen_length :]
    each = F.cross_entropy(logits.transpose(1, 2), targets, reduction="none")
    return (each * noise.weight).sum() / targets.numel()


@pytest.mark.parametrize("shape", [PLAIN, SHIFTED], ids=["plain", "shifted"])
def test_the_loss_is_that_of_the_stock_forward_pass(shape: Shape, pool: list[Batch]) -> None:
    model = new_model(shape)
    drive = Drive.of(model)
    for batch in pool[:4]:
        outcome = masked_loss(model, batch, seeded(3), torch.float32)
        noise, inputs = noised(batch, drive, seeded(3))
        logits = aligned_logits(model, drive, inputs.input_ids, batch.valid)
        expected = entropy(logits[:, -batch.gen_length :], batch, noise)
        torch.testing.assert_close(outcome.loss, expected, atol=1e-4, rtol=1e-5)
        masked = inputs.input_ids == MASK_ID
        assert torch.equal(masked[:, -batch.gen_length :], noise.masked)
        assert not masked[:, : -batch.gen_length].any()


def test_two_streams_train_every_block_as_it_is_decoded(pool: list[Batch]) -> None:
    model = new_model(BLOCKS)
    drive = Drive.of(model)
    batch = next(b for b in pool if b.gen_length == 16 and not b.valid.all())
    outcome = masked_loss(model, batch, seeded(5), torch.float32)
    noise, _ = noised(batch, drive, seeded(5))
    start = batch.canvas.shape[1] - batch.gen_length
    found = torch.zeros(len(batch.canvas), 16, model.config.vocab_size)
    first = batch.valid.long().argmax(1)
    for row, offset in enumerate(first.tolist()):
        for column in range(start, start + 16):
            # Decoding sees clean tokens before the block, noise in it, and nothing behind it.
            begin = offset + (column - offset) // 4 * 4
            seen = batch.canvas[row, offset : begin + 4].clone()
            inside = slice(max(begin, start), begin + 4)
            seen[inside.start - offset :].masked_fill_(
                noise.masked[row, inside.start - start : inside.stop - start], MASK_ID
            )
            ids = seen[None]
            logits = aligned_logits(model, drive, ids, torch.ones_like(ids, dtype=torch.bool))
            found[row, column - start] = logits[0, column - offset]
    torch.testing.assert_close(outcome.loss, entropy(found, batch, noise), atol=1e-4, rtol=1e-5)


def test_guesses_are_tallied_by_task(pool: list[Batch]) -> None:
    model, batch = new_model(PLAIN), pool[0]
    outcome = masked_loss(model, batch, seeded(1), torch.float32)
    noise, inputs = noised(batch, Drive.of(model), seeded(1))
    answers = batch.canvas[:, -batch.gen_length :]
    told = noise.masked & (answers != END_ID)
    assert int(outcome.guessed.sum()) == int(told.sum())
    for number in range(len(TASKS)):
        of_task = told[batch.tasks == number]
        assert int(outcome.guessed[number]) == int(of_task.sum())
    logits = aligned_logits(model, Drive.of(model), inputs.input_ids, batch.valid)
    missed = logits[:, -batch.gen_length :].argmax(-1) != answers
    assert int(outcome.wrong.sum()) == int((missed & told).sum())


def test_tasks_that_go_badly_are_drawn_more_often() -> None:
    weights = task_weights({**dict.fromkeys(TASKS, 0.1), "reverse": 0.9})
    assert max(weights, key=lambda name: weights[name]) == "reverse"
    assert weights["shuffle"] == min(weights.values()) > 0
    assert task_weights(dict.fromkeys(TASKS, 0.0))["copy"] > 0


def new_run(folder: Path, shape: Shape = PLAIN) -> Run:
    folder.mkdir(exist_ok=True)
    return Run(folder, "tiny-test", shape, FEW)


@pytest.mark.parametrize("shape", [PLAIN, BLOCKS, SHIFTED], ids=["plain", "blocks", "shifted"])
def test_a_resumed_run_equals_one_without_a_pause(shape: Shape, tmp_path: Path) -> None:
    # So many steps that a pool ends before the pause and another one behind it.
    steps, pause = 14, 9
    whole = new_run(tmp_path / "whole", shape)
    losses = [whole.advance(step / steps) for step in range(steps)]
    paused = new_run(tmp_path / "paused", shape)
    first = [paused.advance(step / steps) for step in range(pause)]
    paused.save()
    resumed = new_run(tmp_path / "paused", shape)
    second = [resumed.advance(step / steps) for step in range(pause, steps)]
    assert first + second == losses
    assert whole.pools == resumed.pools > 1
    assert whole.errors == resumed.errors
    for kept in ("model", "ema"):
        expected = getattr(whole, kept).state_dict()
        for name, weight in getattr(resumed, kept).state_dict().items():
            assert torch.equal(weight, expected[name]), name


def test_the_loss_falls(tmp_path: Path) -> None:
    run = new_run(tmp_path / "run")
    losses = [run.advance(0.0) for _ in range(40)]
    assert sum(losses[-10:]) < 0.8 * sum(losses[:10])


class Clock:
    """Ten seconds pass whenever somebody looks."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        self.now += 10.0
        return self.now


def test_training_ends_on_time_over_all_its_parts(tmp_path: Path) -> None:
    run = new_run(tmp_path / "run")
    train(run, minutes=1.0, clock=Clock())
    assert (run.step, run.seconds) == (5, 60.0)
    resumed = new_run(tmp_path / "run")
    assert (resumed.step, resumed.seconds) == (5, 60.0)
    train(resumed, minutes=1.5, clock=Clock())
    assert (resumed.step, resumed.seconds) == (7, 90.0)
    train(resumed, minutes=1.5, clock=Clock())
    assert resumed.step == 7


def test_a_checkpoint_is_written_on_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = new_run(tmp_path / "run")
    monkeypatch.setattr(training, "CHECKPOINT_S", 15)
    kept: list[int] = []
    save = Run.save
    monkeypatch.setattr(Run, "save", lambda self: (kept.append(self.step), save(self)))
    train(run, minutes=1.0, clock=Clock())
    assert kept == [1, 3, 5]
    assert (tmp_path / "run" / "tiny-test" / "model.safetensors").exists()


def test_rates_rise_then_fall_to_nothing(tmp_path: Path) -> None:
    run, seen = new_run(tmp_path / "run"), []
    for spent in (0.0, 0.1, 0.9, 0.999):
        run.advance(spent)
        seen.append(run.optimizers["muon"].param_groups[0]["lr"])
        run.step += 200
    assert seen[0] == pytest.approx(training.PEAK_LR["muon"] / training.WARMUP_STEPS)
    assert seen[1] == pytest.approx(training.PEAK_LR["muon"])
    assert seen[1] > seen[2] > seen[3] > 0
