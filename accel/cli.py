"""The command line: `accel doctor | compare | generate | bench | calibrate | zoo`.

Ends with 0 if all went well, 1 if something failed on the way, 2 for a wrong request, 3 if the
model could not be loaded, and 130 after Ctrl-C.
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from accel import __version__
from accel import commands as do
from accel import zoo_commands as zoo_do
from accel.batch import MAX_BATCH_SIZE
from accel.errors import AccelError
from accel.options import (
    add_acceleration,
    add_model,
    add_pictures,
    add_prompts,
    add_sampling,
    temperature,
    whole_number,
)

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]  # noqa: SLF001 - has no other name

_QUIET = {
    "DIFFUSERS_VERBOSITY": "error",
    "TRANSFORMERS_VERBOSITY": "error",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
}
_WRONG_REQUEST = 2
_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code of one command line, `sys.argv[1:]` if none is given."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.command is None:
        parser.print_help(sys.stderr)
        return _WRONG_REQUEST
    # The libraries below report every file they read; whoever sets these gets that back.
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    try:
        return int(options.run(options))
    except AccelError as error:
        if options.debug:
            raise
        print(f"accel: error: {error}", file=sys.stderr)
        return int(getattr(error, "exit_code", _WRONG_REQUEST))
    except KeyboardInterrupt:
        kept = "; finished pictures are kept, start again for the others"
        print(f"accel: interrupted{kept * (options.command == 'generate')}", file=sys.stderr)
        return _INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="accel",
        description="Faster generation with diffusion models, without training.",
        epilog="In Python: accel.patch(pipe)",
    )
    parser.add_argument("--version", action="version", version=f"accel {__version__}")
    commands = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND")
    for add in (_add_doctor, _add_compare, _add_generate, _add_bench, _add_calibrate, _add_zoo):
        add(commands)
    return parser


def _add_doctor(commands: "Commands") -> None:
    about = "what this machine has, what works on it, and what a model would cost on it"
    parser = _command(commands, "doctor", about, do.doctor)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--prompt", help="for the model (default: one of its own, or a made-up one)"
    )
    parser.add_argument("--frames", type=whole_number(1, 1000), help="of a clip")
    parser.add_argument(
        "--no-measure",
        dest="measure",
        action="store_false",
        help="predict FLOPs alone where the speed of this device is not known yet",
    )
    add_model(parser, default=None)
    add_acceleration(parser)


def _add_compare(commands: "Commands") -> None:
    about = "the same pictures with and without acceleration, and a report of the difference"
    parser = _command(commands, "compare", about, do.compare)
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("accel-compare"),
        metavar="DIR",
        help="where pictures and report go (default: %(default)s)",
    )
    add_pictures(parser, rounds=2)
    _add_controls(parser)
    add_model(parser)
    add_acceleration(parser)


def _add_generate(commands: "Commands") -> None:
    about = "a picture for every line of a file; started again, it makes what is missing"
    parser = _command(commands, "generate", about, do.generate)
    parser.add_argument("--prompts", type=Path, required=True, metavar="FILE", help="one a line")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="where pictures and manifest go"
    )
    parser.add_argument(
        "--batch-size",
        type=whole_number(1, MAX_BATCH_SIZE),
        default=1,
        help="pictures in one call (default: 1, where no picture depends on another)",
    )
    parser.add_argument(
        "--max-failures",
        type=whole_number(1, 1_000_000),
        default=10,
        help="stop after so many failed pictures (default: 10)",
    )
    parser.add_argument(
        "--no-metadata",
        dest="metadata",
        action="store_false",
        help="write neither prompt nor settings into the PNGs",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="check everything, print the plan, load nothing"
    )
    parser.add_argument("--plain", action="store_true", help="without acceleration")
    add_model(parser)
    add_acceleration(parser)


def _add_bench(commands: "Commands") -> None:
    about = "speed as a ratio measured in turns, and a record of it"
    parser = _command(commands, "bench", about, do.bench)
    parser.add_argument(
        "--record",
        type=Path,
        default=Path("accel-bench.json"),
        metavar="FILE",
        help="where the record goes (default: %(default)s)",
    )
    parser.add_argument(
        "--check",
        nargs="+",
        type=Path,
        metavar="PATH",
        help="measure nothing: list the records in these files and folders, and find faulty ones",
    )
    add_pictures(parser, rounds=5)
    _add_controls(parser)
    add_model(parser)
    add_acceleration(parser)


def _add_calibrate(commands: "Commands") -> None:
    about = "what a method needs to know about a model, from full runs; prints the method"
    parser = _command(commands, "calibrate", about, do.calibrate)
    parser.add_argument(
        "--method",
        action="append",
        required=True,
        metavar="METHOD",
        help='as in Python, "TeaCache(threshold=0.2)"; may be repeated',
    )
    add_prompts(parser)
    add_model(parser)


def _add_zoo(commands: "Commands") -> None:
    about = "the small trained models that come with accel: list, show, sample, eval, train"
    parser = _command(commands, "zoo", about, zoo_do.listing)
    actions = parser.add_subparsers(title="actions", metavar="ACTION")
    for add in (_add_zoo_show, _add_zoo_sample, _add_zoo_eval, _add_zoo_train):
        add(actions)


def _add_zoo_show(actions: "Commands") -> None:
    parser = _command(actions, "show", "a model's card and what it reads", zoo_do.show)
    parser.add_argument("name")


def _add_zoo_sample(actions: "Commands") -> None:
    about = "one picture, clip or answer"
    parser = _command(actions, "sample", about, zoo_do.sample)
    parser.add_argument("name")
    parser.add_argument("--prompt", help="what to make (default: a prompt of the model's own)")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help=".png; for clips .gif or .webp; an answer is printed if left out",
    )
    add_sampling(parser)
    parser.add_argument("--frames", type=whole_number(1, 1000), help="of a clip")
    text = parser.add_argument_group("language models")
    text.add_argument("--length", type=whole_number(1, 512), help="most tokens of the answer")
    text.add_argument("--tokens-per-step", type=whole_number(1, 512), help="(default: 1)")
    text.add_argument("--temperature", type=temperature, help="0 takes the likeliest (default)")


def _add_zoo_eval(actions: "Commands") -> None:
    parser = _command(
        actions, "eval", "quality over steps, or over tokens a step, as a record", zoo_do.evaluate
    )
    parser.add_argument("name")
    parser.add_argument(
        "--prompts", type=whole_number(1, 4096), help="at most so many in each stage"
    )
    parser.add_argument("--out", type=Path, default=Path(), metavar="DIR", help="(default: here)")
    parser.add_argument("--only", nargs="+", metavar="STAGE", help="the record keeps the others")


def _add_zoo_train(actions: "Commands") -> None:
    about = "train a model anew on this machine; started again, it goes on"
    parser = _command(actions, "train", about, zoo_do.train)
    parser.add_argument("name")
    parser.add_argument(
        "--minutes",
        type=whole_number(1, 100_000),
        default=90,
        help="in all, after the autoencoder's (default: %(default)s)",
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="where it is kept (default: accel-zoo-NAME)"
    )


def _add_controls(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--no-controls",
        dest="controls",
        action="store_false",
        help="do not try fewer steps at equal time",
    )


def _command(
    commands: "Commands", name: str, about: str, run: Callable[[argparse.Namespace], int]
) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=about, description=f"{about[0].upper()}{about[1:]}.")
    parser.add_argument("--debug", action="store_true", help="show where an error comes from")
    parser.set_defaults(run=run)
    return parser
