"""Text inside a PNG: the settings that made it, as other tools read them and as we do."""

import io
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from PIL.PngImagePlugin import PngInfo

from accel.report import Report, versions

if TYPE_CHECKING:
    from accel.batch import Item, Job

FRAME_MS = 100
"""How long a frame of a clip is shown; pipelines do not say."""

_GUIDANCE = ("true_cfg_scale", "guidance_scale")


def encode(frames: Sequence[Any], texts: Mapping[str, str]) -> bytes:
    """Returns a PIL image as PNG with the texts in it; several as an animated one, lossless too."""
    info = PngInfo()
    for key, text in texts.items():
        info.add_text(key, text)
    stream = io.BytesIO()
    first, *others = frames
    moving = {"save_all": True, "append_images": others, "duration": FRAME_MS} if others else {}
    first.save(stream, format="PNG", pnginfo=info, **moving)
    return stream.getvalue()


def texts(
    job: "Job", item: "Item", pipe: Any, size: tuple[int, int], report: Report | None
) -> dict[str, str]:
    """Returns `parameters`, as the AUTOMATIC1111 web UI writes it, and `accel`, which is JSON.

    No path of this machine is among them.
    """
    whole = {
        **job.settings(),
        "prompt": item.prompt,
        "seed": item.seed,
        "index": item.index,
        "id": item.item_id,
        "batch_size": job.batch_size,
        "versions": versions(),
    }
    if report is not None:
        whole["report"] = {
            "steps": report.steps,
            "calls": report.calls,
            "reused": report.reused,
            "blocks_run": report.blocks_run,
            "blocks_skipped": report.blocks_skipped,
        }
    return {
        "parameters": _parameters(job, item, pipe, size),
        "accel": json.dumps(whole, ensure_ascii=False),
    }


def _parameters(job: "Job", item: "Item", pipe: Any, size: tuple[int, int]) -> str:
    arguments = job.arguments
    lines = [item.prompt]
    if arguments.get("negative_prompt"):
        lines.append(f"Negative prompt: {arguments['negative_prompt']}")
    guidance = next((arguments[key] for key in _GUIDANCE if key in arguments), None)
    scheduler = type(getattr(pipe, "scheduler", None)).__name__
    settings = {
        "Steps": arguments.get("num_inference_steps"),
        "Sampler": scheduler.removesuffix("Scheduler"),
        "CFG scale": guidance,
        "Seed": item.seed,
        "Size": f"{size[0]}x{size[1]}",
        "Model": job.source.name,
        "Acceleration": "; ".join(map(str, job.methods)).replace(",", ";") or None,
    }
    named = (f"{key}: {value}" for key, value in settings.items() if value is not None)
    return "\n".join([*lines, ", ".join(named)])
