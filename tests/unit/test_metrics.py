"""The metrics agree with scikit-image, never wrap around, never resize and survive JSON."""

import json
import math

import numpy as np
import pytest
import torch
from PIL import Image

from accel import metrics
from accel.errors import OptionError


def patterns(height: int, width: int, channels: int) -> tuple[np.ndarray, np.ndarray]:
    y, x, k = np.mgrid[0:height, 0:width, 0:channels]
    first = ((x * 7 + y * 13 + k * 29 + (x * y) % 11 * 5) % 256).astype(np.uint8)
    second = np.clip(first.astype(int) + ((x * 3 + y * 5 + k) % 17) - 8, 0, 255)
    return first, second.astype(np.uint8)


# scikit-image 0.26.0 on the same arrays: structural_similarity(a, b, gaussian_weights=True,
# sigma=1.5, use_sample_covariance=False, data_range=255, channel_axis=2) and
# peak_signal_noise_ratio(a, b, data_range=255).
SCIKIT_IMAGE = [
    ((32, 48, 3), 0.9903379093946539, 34.40335320651312),
    ((11, 11, 3), 0.9847841661679707, 34.42445456039589),
    ((24, 20, 1), 0.9925560850645868, 34.43555287010455),
]


@pytest.mark.parametrize(("shape", "ssim", "psnr"), SCIKIT_IMAGE)
def test_ssim_and_psnr_equal_scikit_image(
    shape: tuple[int, int, int], ssim: float, psnr: float
) -> None:
    first, second = patterns(*shape)
    assert metrics.ssim(first, second) == pytest.approx(ssim, abs=1e-12)
    assert metrics.psnr(first, second) == pytest.approx(psnr, abs=1e-12)


@pytest.mark.parametrize("difference", [1, 16, 128, 200])
def test_uint8_differences_never_wrap(difference: int) -> None:
    dark = np.zeros((16, 16, 3), np.uint8)
    bright = dark + np.uint8(difference)
    expected = 20 * math.log10(255 / difference)
    assert metrics.psnr(dark, bright) == pytest.approx(expected)
    assert metrics.psnr(bright, dark) == pytest.approx(expected)
    assert metrics.mae(dark, bright) == pytest.approx(difference / 255)
    assert metrics.max_error(bright, dark) == pytest.approx(difference / 255)


def test_every_kind_of_picture_gives_one_number() -> None:
    first, second = patterns(20, 24, 3)
    expected = metrics.score(first, second)

    def tensor(array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).permute(2, 0, 1)[None]

    kinds = {
        "pil": (Image.fromarray(first), Image.fromarray(second)),
        "float array": (first / 255.0, second / 255.0),
        "uint8 tensor": (tensor(first), tensor(second)),
        "float tensor": (tensor(first).double() / 255, tensor(second).double() / 255),
    }
    for kind, (a, b) in kinds.items():
        found = metrics.score(a, b)
        assert found.psnr == pytest.approx(expected.psnr), kind
        assert found.ssim == pytest.approx(expected.ssim), kind


def test_palette_pictures_are_compared_by_their_colours() -> None:
    first, _ = patterns(16, 16, 3)
    palette = Image.fromarray(first).convert("P")
    assert metrics.score(palette, palette.convert("RGB")).identical


def test_grey_arrays_may_lack_the_channel_axis() -> None:
    first, second = patterns(24, 20, 1)
    assert metrics.ssim(first[:, :, 0], second[:, :, 0]) == pytest.approx(SCIKIT_IMAGE[2][1])


def test_identical_pictures_are_named_so_in_valid_json() -> None:
    first, _ = patterns(16, 16, 3)
    score = metrics.score(first, first.copy())
    assert score.psnr == math.inf
    assert score.ssim == pytest.approx(1.0)
    written = json.loads(json.dumps(score.to_dict(), allow_nan=False))
    assert written["identical"] is True
    assert written["psnr"] is None


def test_summary_keeps_identical_pairs_out_of_the_mean_and_names_the_worst() -> None:
    base = np.full((16, 16, 3), 100, np.uint8)
    pairs = [(base, base), (base, base + np.uint8(10)), (base, base + np.uint8(40))]
    summary = metrics.summarise(pairs)
    near, far = 20 * math.log10(255 / 10), 20 * math.log10(255 / 40)
    assert (summary.count, summary.identical, summary.worst_index) == (3, 1, 2)
    assert summary.psnr_mean == pytest.approx((near + far) / 2)
    assert summary.psnr_worst == pytest.approx(far)
    assert summary.ssim_worst <= summary.ssim_mean < 1.0
    assert summary.max_error == pytest.approx(40 / 255)


def test_summary_of_identical_pairs_is_valid_json() -> None:
    base = np.full((16, 16, 3), 100, np.uint8)
    summary = metrics.summarise([(base, base)])
    assert summary.psnr_mean == math.inf
    written = json.dumps(summary.to_dict(), allow_nan=False)
    assert json.loads(written)["psnr_mean"] is None


def test_psnr_of_a_batch_pools_the_squared_error() -> None:
    first = torch.zeros(2, 3, 16, 16)
    second = first.clone()
    second[1] = 0.2
    assert metrics.psnr(first, second) == pytest.approx(-10 * math.log10(0.04 / 2), abs=1e-5)


def test_other_sizes_are_refused_and_never_resized() -> None:
    with pytest.raises(OptionError, match=r"16x20 .* and 20x16"):
        metrics.psnr(np.zeros((20, 16, 3), np.uint8), np.zeros((16, 20, 3), np.uint8))


@pytest.mark.parametrize(
    ("picture", "message"),
    [
        (np.full((16, 16, 3), 200.0), "from 200 to 200"),
        (np.full((16, 16, 3), -1.0), "from -1 to -1"),
        (np.full((16, 16, 3), np.nan), "from nan to nan"),
        (np.zeros((16, 16, 3), np.int32), "int32"),
        (np.zeros((1, 16, 16, 3, 1), np.uint8), "5 dimensions"),
        (np.zeros((0, 16, 3), np.uint8), "shape"),
        (torch.zeros(3, 16, 16), "shape"),
        ("a path.png", "Found str"),
    ],
)
def test_what_is_no_picture_in_range_is_refused(picture: object, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        metrics.psnr(picture, picture)


def test_ssim_refuses_pictures_smaller_than_its_window() -> None:
    small = np.zeros((10, 64, 3), np.uint8)
    with pytest.raises(OptionError, match="at least 11x11"):
        metrics.ssim(small, small)


def test_summary_of_nothing_is_refused() -> None:
    with pytest.raises(OptionError, match="no pairs"):
        metrics.summarise([])


def test_latent_cosine_is_the_mean_over_the_batch() -> None:
    first = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0], [0.0, 0.0]])
    second = torch.tensor([[0.0, 2.0], [3.0, 3.0], [0.0, 0.0], [1.0, 0.0]])
    assert metrics.latent_cosine(first, second) == pytest.approx((0 + 1 + 1 + 0) / 4)
    with pytest.raises(OptionError, match=r"\[4, 2\] and \[2, 2\]"):
        metrics.latent_cosine(first, second[:2])


def test_a_clip_counts_as_a_batch_of_its_frames() -> None:
    first, second = np.random.default_rng(0).random((2, 3, 16, 16, 3))
    errors = np.square(first - second).mean((1, 2, 3))
    assert metrics.psnr(first, second) == pytest.approx(-10 * np.log10(errors.mean()))
    single = [metrics.ssim(a, b) for a, b in zip(first, second, strict=True)]
    assert metrics.ssim(first, second) == pytest.approx(np.mean(single))
    images = [Image.fromarray((frame * 255).astype(np.uint8)) for frame in first]
    assert metrics.pixels(images).shape == (3, 3, 16, 16)
    assert metrics.max_error(images, np.stack([np.asarray(image) for image in images])) == 0
