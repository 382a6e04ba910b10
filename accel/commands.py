"""What the commands of the command line do; `accel.cli` says how they are written.

Every command checks all it can before it loads a model, and returns its exit code.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from accel import batch, compare_page, latency, metrics, zoo
from accel import doctor as doctor_of
from accel.batch import Job
from accel.calibration import calibrate as run_calibrate
from accel.compare import Comparison, Judge
from accel.compare import compare as run_compare
from accel.errors import OptionError
from accel.manifest import Manifest
from accel.method import Method
from accel.method_text import choose
from accel.options import call_arguments
from accel.progress import Progress
from accel.prompts import check_prompt, read_prompts
from accel.record import prepare_folder, read_record, write_record
from accel.shot import Shot
from accel.source import Source, find
from accel.zoo.judge import Judge as SceneJudge
from accel.zoo.scenes import SIDE_PX, parse
from accel.zoo.video.clips import FRAMES, parse_clip
from accel.zoo.video.scoring import clip_figures

if TYPE_CHECKING:
    from accel.cost import Forecast

_FAILED = 1
_ANY_PROMPT = "a photograph of a red bicycle in front of a white wall"


def doctor(options: argparse.Namespace) -> int:
    """Prints what was found, and what a model would cost; 1 if something needed is broken."""
    asked = options.preset or options.method or options.memory
    if options.model is None and asked:
        raise OptionError("--preset, --method and --memory need --model, whose cost they change.")
    forecast = None if options.model is None else _forecast(options)
    findings = doctor_of.examine()
    if options.json:
        _say(doctor_of.to_json(findings, None if forecast is None else forecast.to_dict()))
    else:
        _say(doctor_of.table(findings) + ("" if forecast is None else f"\n\n{forecast}"))
    return 0 if doctor_of.healthy(findings) else _FAILED


def _forecast(options: argparse.Namespace) -> "Forecast":
    # Counting loads more of torch than other commands need.
    from accel.cost import forecast  # noqa: PLC0415
    from accel.observe import observe  # noqa: PLC0415

    source = find(options.model)
    methods = choose(options.preset, options.method)
    arguments = call_arguments(source, options)
    if options.prompt is not None:
        prompt = check_prompt(options.prompt, "--prompt")
    else:
        prompt = source.prompts(1)[0] if source.kind == "zoo" else _ANY_PROMPT
    pipe = source.load(options.device, options.dtype)
    observed = observe(pipe, prompt=prompt, **arguments)
    speed = latency.calibrated if options.measure else latency.stored
    return forecast(observed, methods, speed(observed.device, observed.dtype))


def compare(options: argparse.Namespace) -> int:
    """Compares, prints the table and writes the folder."""
    source = find(options.model)
    shots, methods = _shots(source, options), choose(options.preset, options.method)
    prepare_folder(options.out)
    comparison = _compared(source, shots, methods, options)
    page = compare_page.save(comparison, options.out)
    _say(f"{comparison}\n\n{page}")
    return 0


def bench(options: argparse.Namespace) -> int:
    """Measures, prints the table and writes the record; or checks records, 1 if one is faulty."""
    if options.check:
        return _check_records(options.check)
    source = find(options.model)
    shots, methods = _shots(source, options), choose(options.preset, options.method)
    prepare_folder(options.record.parent)
    comparison = _compared(source, shots, methods, options)
    config = {
        "model": source.identity,
        "methods": [repr(method) for method in methods],
        "memory": None if options.memory is None else repr(options.memory),
        "arguments": dict(shots[0].arguments),
        "prompts": [shot.prompt for shot in shots],
        "rounds": options.rounds,
        "controls": options.controls,
    }
    name = f"{', '.join(comparison.methods)} on {source.name}"
    seeds = [shot.seed for shot in shots]
    path = write_record(options.record, name, config, seeds, comparison.to_dict())
    _say(f"{comparison}\n\n{path}")
    return 0


def calibrate(options: argparse.Namespace) -> int:
    """Prints every method with what it learnt about the model, ready for --method or Python."""
    source = find(options.model)
    shots, methods = _shots(source, options), choose(None, options.method)
    for method in methods:
        method.learning()  # refuses before anything is loaded
    pipe = source.load(options.device, options.dtype)
    prompts, arguments = [shot.prompt for shot in shots], shots[0].arguments
    for method in methods:
        _say(str(run_calibrate(pipe, method, prompts, **arguments)))
    return 0


def _check_records(places: Sequence[Path]) -> int:
    faults = 0
    for path in [path for place in places for path in _records(place)]:
        try:
            record = read_record(path)
        except OptionError as error:
            faults += 1
            _say(f"faulty   {error}")
            continue
        commit = str(record["commit"])[:12]
        _say(
            f"ok       {path}: {record['name']}; {record['created']}, {commit}, {record['device']}"
        )
    return _FAILED if faults else 0


def generate(options: argparse.Namespace) -> int:
    """Makes what is missing; 1 if a picture failed."""
    methods = _methods_to_generate(options)
    source = find(options.model)
    job = Job(
        source=source,
        prompts=tuple(read_prompts(options.prompts)),
        folder=options.out,
        methods=methods,
        memory=options.memory,
        arguments=call_arguments(source, options),
        seed=options.seed,
        batch_size=options.batch_size,
        metadata=options.metadata,
        max_failures=options.max_failures,
    )
    manifest = Manifest(job.folder)
    items = job.items()
    missing = [item for item in items if not manifest.done(item.item_id)]
    if options.dry_run:
        _say(_plan(job, items, missing))
        return 0
    prepare_folder(job.folder)
    if not missing:
        _say(f"Nothing to do: all {len(items)} pictures are in {job.folder}.")
        return 0
    pipe = source.load(options.device, options.dtype)
    with Progress("generate", len(missing)) as progress:
        tally = batch.run(job, pipe, manifest, missing, progress.step)
    kept = len(items) - len(missing)
    _say(f"{tally.made} made, {tally.failed} failed, {kept} kept from before, in {job.folder}.")
    if tally.failed:
        _say(f"The last fault: {tally.reason} Start again to try those that failed.")
    return _FAILED if tally.failed else 0


def _shots(source: Source, options: argparse.Namespace) -> list[Shot]:
    if options.prompt and options.prompts_file:
        raise OptionError("Give --prompt or --prompts-file, not both.")
    if options.prompts_file:
        prompts = read_prompts(options.prompts_file)
    elif options.prompt:
        prompts = [check_prompt(prompt, "--prompt") for prompt in options.prompt]
    else:
        prompts = source.prompts(options.count)
    arguments = call_arguments(source, options)
    return [
        Shot(prompt=prompt, seed=options.seed + index, arguments=arguments)
        for index, prompt in enumerate(prompts)
    ]


def _compared(
    source: Source,
    shots: Sequence[Shot],
    methods: Sequence[Method],
    options: argparse.Namespace,
) -> Comparison:
    pipe = source.load(options.device, options.dtype)
    # Two runs for each pair; a search takes about four a round and two for every picture.
    total = 2 * len(shots) * options.rounds + 2
    if options.controls:
        total += 2 * (4 * options.rounds + 2 * (len(shots) - 1))
    with Progress("compare", total) as progress:
        comparison = run_compare(
            pipe,
            shots,
            methods,
            memory=options.memory,
            rounds=options.rounds,
            controls=options.controls,
            on_run=progress.step,
        )
    comparison = replace(comparison, model=source.name)
    judge = scene_judge(source, shots)
    return comparison if judge is None else comparison.judge(judge)


def scene_judge(source: Source, shots: Sequence[Shot]) -> Judge | None:
    """Returns who can say whether the pictures or clips show what was asked, or None if nobody can.

    That is so for the zoo's scenes at their own size.
    """
    native = {"width": SIDE_PX, "height": SIDE_PX, "num_frames": FRAMES}
    called = [
        shot.arguments.get(name, size) == size for shot in shots for name, size in native.items()
    ]
    if source.kind != "zoo" or not all(called):
        return None
    clips = zoo.card(source.place).kind == "video"
    try:
        wanted: list[Any] = [(parse_clip if clips else parse)(shot.prompt) for shot in shots]
    except ValueError:
        return None
    judge = SceneJudge.load()

    def of_pictures(_: Sequence[Shot], images: Sequence[Any]) -> Mapping[str, float]:
        score = judge.score(torch.cat([metrics.pixels(image) for image in images]), wanted)
        return {"kind": score.kind_accuracy, "colour": score.colour_accuracy}

    def of_clips(_: Sequence[Shot], videos: Sequence[Any]) -> Mapping[str, float]:
        found = clip_figures(
            judge, torch.stack([metrics.pixels(video) for video in videos]), wanted
        )
        return {name: found[name] for name in ("kind", "colour", "direction")}

    return of_clips if clips else of_pictures


def _methods_to_generate(options: argparse.Namespace) -> tuple[Method, ...]:
    if not options.plain:
        return choose(options.preset, options.method)
    if options.preset or options.method or options.memory:
        raise OptionError("Give --plain, or --preset, --method or --memory, not both.")
    return ()


def _plan(job: Job, items: Sequence[batch.Item], missing: Sequence[batch.Item]) -> str:
    width, height = (job.arguments.get(side, "default") for side in ("width", "height"))
    rows = (
        f"model         {job.source.identity}",
        f"acceleration  {', '.join(map(str, job.methods)) or 'none'}",
        *(() if job.memory is None else (f"memory        {job.memory}",)),
        f"arguments     {dict(job.arguments)}",
        f"size          {width} x {height}",
        f"pictures      {len(items)}, {len(missing)} of them missing in {job.folder}",
        *(f"  {item.name}  seed {item.seed}  {item.prompt}" for item in missing),
    )
    return "\n".join(rows)


def _records(place: Path) -> list[Path]:
    found = sorted(place.rglob("*.json")) if place.is_dir() else [place]
    if not found:
        raise OptionError(f"{place} holds no .json files; expected records that accel bench wrote.")
    return found


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
