"""How far one picture is from another, in numbers that mean the same everywhere.

A picture is a PIL image, a numpy array `[H, W]` or `[H, W, C]` (uint8 in 0..255, or floating point
in 0..1) or a torch tensor `[B, C, H, W]` (floating point in 0..1, or uint8). A clip is a list of
PIL images or an array `[F, H, W, C]`, and counts as a batch of its frames. Everything becomes
float64 in 0..1 *before* anything is subtracted: differences of uint8 wrap around. Sizes are never
changed; two sizes are an error. Pictures that are equal everywhere are `identical`; their PSNR is
`math.inf` in Python and null beside `"identical": true` in JSON.
"""

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from accel.errors import OptionError

SSIM_VARIANT = "gaussian 11x11, sigma 1.5, valid region, mean over channels"
"""The SSIM computed here; other windows give other numbers for the same pictures."""

Picture: TypeAlias = Any
"""A picture or clip, as described at the top of this module."""

_WINDOW = 11
_SIGMA = 1.5
_K1, _K2 = 0.01, 0.03
# Rounding in a decoder may leave a value a hair outside 0..1; 0..255 in floats may not pass.
_RANGE_SLACK = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One accelerated picture against its reference.

    Attributes:
        psnr: Peak signal-to-noise ratio in dB (peak 1.0); `math.inf` if identical.
        ssim: Structural similarity, at most 1.0; the variant is `SSIM_VARIANT`.
        mae: Mean absolute difference, 0..1.
        max_error: Largest absolute difference, 0..1.
    """

    psnr: float
    ssim: float
    mae: float
    max_error: float

    @property
    def identical(self) -> bool:
        """True if no value of the two pictures differs."""
        return self.max_error == 0.0

    def to_dict(self) -> dict[str, Any]:
        """Returns the numbers as valid JSON: an infinite PSNR becomes None."""
        return {**asdict(self), "psnr": finite_or_none(self.psnr), "identical": self.identical}


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Several scores in one: means, and always the worst item beside them.

    Attributes:
        count: How many pairs.
        identical: How many of them do not differ at all; they are left out of `psnr_mean`.
        psnr_mean: Mean in dB over the pairs that differ; `math.inf` if none does.
        psnr_worst: The lowest PSNR.
        worst_index: The position of the pair with the lowest PSNR.
        ssim_mean: Mean SSIM over all pairs.
        ssim_worst: The lowest SSIM.
        mae_mean: Mean absolute difference over all pairs.
        max_error: The largest difference of any pair.
    """

    count: int
    identical: int
    psnr_mean: float
    psnr_worst: float
    worst_index: int
    ssim_mean: float
    ssim_worst: float
    mae_mean: float
    max_error: float

    @classmethod
    def of(cls, scores: Iterable[Score]) -> "Summary":
        """Returns the summary of `scores`.

        Raises:
            OptionError: there is no score.
        """
        items = tuple(scores)
        if not items:
            raise OptionError("Found no pairs of pictures to summarise; give at least one.")
        different = [score.psnr for score in items if not score.identical]
        worst = min(range(len(items)), key=lambda index: items[index].psnr)
        return cls(
            count=len(items),
            identical=len(items) - len(different),
            psnr_mean=_mean(different) if different else math.inf,
            psnr_worst=items[worst].psnr,
            worst_index=worst,
            ssim_mean=_mean([score.ssim for score in items]),
            ssim_worst=min(score.ssim for score in items),
            mae_mean=_mean([score.mae for score in items]),
            max_error=max(score.max_error for score in items),
        )

    def to_dict(self) -> dict[str, Any]:
        """Returns the numbers as valid JSON: infinite PSNRs become None."""
        numbers = asdict(self)
        for key in ("psnr_mean", "psnr_worst"):
            numbers[key] = finite_or_none(numbers[key])
        return numbers


def psnr(a: Picture, b: Picture) -> float:
    """Returns the peak signal-to-noise ratio in dB, `math.inf` if `a` equals `b`.

    The squared error is averaged over everything given, so for a batch of tensors over the batch;
    use `summarise` for one number each and the worst.

    Raises:
        OptionError: a picture has another size, an unknown type or values outside its range.
    """
    first, second = pixels_of_both(a, b)
    return psnr_of(float((first - second).square().mean()))


def psnr_of(mse: float) -> float:
    """Returns the PSNR in dB of a mean squared error on the 0..1 scale; `math.inf` for 0."""
    return math.inf if mse == 0.0 else -10.0 * math.log10(mse)


def ssim(a: Picture, b: Picture) -> float:
    """Returns the structural similarity, 1.0 if `a` equals `b`.

    Wang et al. 2004: Gaussian window of 11 pixels, sigma 1.5, K1 = 0.01, K2 = 0.03, population
    covariance, each channel by itself, averaged over the windows that lie wholly inside. The same
    as scikit-image's `structural_similarity(gaussian_weights=True, sigma=1.5,
    use_sample_covariance=False)`, whose default settings give other numbers.

    Raises:
        OptionError: as for `psnr`, or a side is shorter than the window.
    """
    first, second = pixels_of_both(a, b)
    if min(first.shape[-2:]) < _WINDOW:
        raise OptionError(
            f"SSIM needs pictures of at least {_WINDOW}x{_WINDOW} pixels, found "
            f"{_size(first)}. Use psnr or mae for pictures this small."
        )
    return _ssim(first, second)


def mae(a: Picture, b: Picture) -> float:
    """Returns the mean absolute difference, 0..1.

    Raises:
        OptionError: as for `psnr`.
    """
    first, second = pixels_of_both(a, b)
    return float((first - second).abs().mean())


def max_error(a: Picture, b: Picture) -> float:
    """Returns the largest absolute difference of any value, 0..1.

    Raises:
        OptionError: as for `psnr`.
    """
    first, second = pixels_of_both(a, b)
    return float((first - second).abs().max())


def latent_cosine(a: Tensor, b: Tensor) -> float:
    """Returns the cosine of the angle between two latents `[B, ...]`, averaged over the batch.

    Two latents that are zero everywhere have cosine 1, one of them alone has cosine 0.

    Raises:
        OptionError: the shapes differ.
    """
    if a.shape != b.shape:
        raise OptionError(
            f"Latents of shapes {list(a.shape)} and {list(b.shape)} cannot be compared; "
            "run both generations with the same size and batch."
        )
    first, second = a.double().flatten(1), b.double().flatten(1)
    lengths = first.norm(dim=1) * second.norm(dim=1)
    cosines = (first * second).sum(dim=1) / lengths.clamp_min(torch.finfo(torch.float64).tiny)
    both_zero = (first == 0).all(dim=1) & (second == 0).all(dim=1)
    return float(torch.where(both_zero, torch.ones_like(cosines), cosines).mean())


def score(a: Picture, b: Picture) -> Score:
    """Returns PSNR, SSIM, mean and largest error of `b` against the reference `a`.

    Raises:
        OptionError: as for `ssim`.
    """
    return Score(psnr=psnr(a, b), ssim=ssim(a, b), mae=mae(a, b), max_error=max_error(a, b))


def summarise(pairs: Iterable[tuple[Picture, Picture]]) -> Summary:
    """Returns means and the worst item over `pairs` of reference and accelerated picture.

    Raises:
        OptionError: there is no pair, or as for `ssim`.
    """
    return Summary.of(score(a, b) for a, b in pairs)


def finite_or_none(value: float) -> float | None:
    """Returns `value`, or None where JSON has no number for it."""
    return value if math.isfinite(value) else None


def pixels(picture: Picture) -> Tensor:
    """Returns the picture as float64 `[B, C, H, W]` in 0..1.

    Raises:
        OptionError: unknown type or shape, or values that are not in 0..1 (0..255 for uint8).
    """
    values = picture if isinstance(picture, Tensor) else _from_array(picture)
    if values.ndim != len("BCHW") or values.numel() == 0:
        raise OptionError(
            f"Found a picture of shape {list(values.shape)}; expected a tensor [B, C, H, W], "
            "an array [H, W] or [H, W, C], or a PIL image."
        )
    if values.dtype == torch.uint8:
        return values.cpu().double() / 255.0
    if not values.is_floating_point():
        raise OptionError(
            f"Found a picture of {values.dtype}; expected uint8 in 0..255 or floats in 0..1."
        )
    return _in_range(values.detach().cpu().double())


def pixels_of_both(a: Picture, b: Picture) -> tuple[Tensor, Tensor]:
    """Returns both pictures as `pixels`, if they are equally large.

    Raises:
        OptionError: they are not, or as for `pixels`.
    """
    first, second = pixels(a), pixels(b)
    if first.shape != second.shape:
        raise OptionError(
            f"Pictures of {_size(first)} and {_size(second)} cannot be compared; generate both "
            "at one size. Nothing is resized here, since that would change the numbers."
        )
    return first, second


def _in_range(values: Tensor) -> Tensor:
    lowest, highest = float(values.min()), float(values.max())
    # Written so that a NaN, for which every comparison is false, is refused as well.
    if not (lowest >= -_RANGE_SLACK and highest <= 1.0 + _RANGE_SLACK):
        raise OptionError(
            f"Found a floating-point picture with values from {lowest:g} to {highest:g}; "
            "expected 0..1. Divide by 255, or undo the -1..1 scaling, first."
        )
    return values


def _from_array(picture: Picture) -> Tensor:
    if isinstance(picture, (list, tuple)) and picture:
        return torch.cat([_from_array(frame) for frame in picture])
    if hasattr(picture, "mode") and picture.mode not in {"L", "RGB", "RGBA"}:
        picture = picture.convert("RGB")
    array = np.asarray(picture)
    if array.dtype.kind not in "uif" or array.ndim not in {2, 3, 4}:
        raise OptionError(
            f"Found {type(picture).__name__} (dtype {array.dtype}, {array.ndim} dimensions) where "
            "a picture was expected: a PIL image, an array [H, W] or [H, W, C], a tensor, or a "
            "clip: a list of PIL images or an array [F, H, W, C]."
        )
    clip = array if array.ndim == len("FHWC") else np.atleast_3d(array)[None]
    return torch.from_numpy(clip.copy()).permute(0, 3, 1, 2)


def _size(values: Tensor) -> str:
    batch, channels, height, width = values.shape
    return f"{width}x{height} ({channels} channels, batch {batch})"


def _ssim(first: Tensor, second: Tensor) -> float:
    offsets = torch.arange(_WINDOW, dtype=torch.float64) - _WINDOW // 2
    kernel = torch.exp(-0.5 * (offsets / _SIGMA).square())
    kernel = kernel / kernel.sum()

    def local_mean(values: Tensor) -> Tensor:
        planes = values.flatten(0, 1)[:, None]
        planes = F.conv2d(planes, kernel.view(1, 1, -1, 1))
        return F.conv2d(planes, kernel.view(1, 1, 1, -1))

    mean_a, mean_b = local_mean(first), local_mean(second)
    variance_a = local_mean(first.square()) - mean_a.square()
    variance_b = local_mean(second.square()) - mean_b.square()
    covariance = local_mean(first * second) - mean_a * mean_b
    c1, c2 = _K1**2, _K2**2
    similarity = ((2 * mean_a * mean_b + c1) * (2 * covariance + c2)) / (
        (mean_a.square() + mean_b.square() + c1) * (variance_a + variance_b + c2)
    )
    return float(similarity.mean())


def _mean(values: list[float]) -> float:
    return math.fsum(values) / len(values)
