"""Clusters: planted ones are found, the same for the same seed, and similar ones stand together."""

import pytest
import torch
from torch import Tensor

from sparse_attn.kernels.assign import assign
from sparse_attn.kernels.permute import cluster_stats, sort_by_label
from sparse_attn.plan.clusters import drift, first_centroids, in_series, lloyd


def planted(tokens: int = 240, clusters: int = 6, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Returns [2, tokens, 16] in tight clusters around far centres, and which token is in which."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(2, clusters, 16, generator=generator) * 10
    labels = torch.arange(tokens) * clusters // tokens
    noise = torch.randn(2, tokens, 16, generator=generator) * 0.1
    return centres[:, labels] + noise, labels


def test_planted_clusters_are_found() -> None:
    x, labels = planted()
    found = assign(x, lloyd(x, first_centroids(x, 6, seed=1), 5))
    for head in found:
        pairs = {(int(a), int(b)) for a, b in zip(labels, head, strict=True)}
        assert len(pairs) == 6


def test_centroids_are_the_means_of_their_tokens() -> None:
    x, labels = planted()
    centroids = lloyd(x, first_centroids(x, 6, seed=1), 2)
    for head in range(2):
        for label in range(6):
            mean = x[head][labels == label].double().mean(0)
            nearest = (centroids[head].double() - mean).norm(dim=1).min()
            assert nearest < 1e-5


def test_the_same_seed_draws_the_same_rows_and_another_does_not() -> None:
    x, _ = planted()
    assert torch.equal(first_centroids(x, 20, seed=3), first_centroids(x, 20, seed=3))
    assert not torch.equal(first_centroids(x, 20, seed=3), first_centroids(x, 20, seed=4))


@pytest.mark.parametrize("count", [1, 7, 50, 53])
def test_first_centroids_are_distinct_rows(count: int) -> None:
    x = torch.arange(53.0).view(1, 53, 1)
    rows = first_centroids(x, count, seed=0)[0, :, 0]
    assert len(set(rows.tolist())) == count


def test_an_empty_cluster_keeps_its_centroid() -> None:
    x, _ = planted()
    far = torch.full((2, 1, 16), 1e3)
    centroids = lloyd(x, torch.cat([first_centroids(x, 6, seed=1), far], 1), 3)
    assert torch.equal(centroids[:, 6:], far)


def test_series_keeps_every_centroid_and_puts_similar_ones_together() -> None:
    generator = torch.Generator().manual_seed(0)
    line = torch.arange(21.0)[torch.randperm(21, generator=generator)]
    direction = torch.randn(5, generator=generator)
    centroids = (line[:, None] * direction).expand(2, -1, -1)
    series = in_series(centroids)
    places = series[0] @ direction / direction.square().sum()
    torch.testing.assert_close(places.sort().values, torch.arange(21.0), atol=1e-4, rtol=0)
    # On a line the series is the line, from one end or the other.
    assert bool((places.diff() > 0).all() or (places.diff() < 0).all())


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_series_of_any_length(count: int) -> None:
    centroids = torch.randn(3, count, 4, generator=torch.Generator().manual_seed(0))
    series = in_series(centroids)
    for head in range(3):
        assert sorted(map(tuple, series[head].tolist())) == sorted(
            map(tuple, centroids[head].tolist())
        )


def test_drift_is_the_move_as_a_share_of_the_spread() -> None:
    assigned = torch.tensor([[[0.0], [4.0]]])
    # The means moved by 1 each; they stand at distance 2 of their common mean.
    fresh = assigned + 1
    assert float(drift(fresh, assigned, torch.tensor([[3, 3]]))) == pytest.approx(0.5)
    assert float(drift(assigned, assigned, torch.tensor([[3, 3]]))) == 0
    # An empty cluster has not moved anything.
    assert float(drift(torch.tensor([[[0.0], [9.0]]]), assigned, torch.tensor([[3, 0]]))) == 0


def test_statistics_are_those_of_the_sorted_tokens() -> None:
    x, _ = planted(50, 3)
    labels = torch.randint(0, 5, (2, 50), generator=torch.Generator().manual_seed(2))
    labels[labels == 3] = 2
    order, sizes = sort_by_label(labels, 5)
    mean, squares = cluster_stats(x, order, sizes)
    assert sizes.sum(1).tolist() == [50, 50]
    for head in range(2):
        assert bool((labels[head][order[head]].diff() >= 0).all())
        for label in range(5):
            rows = x[head][labels[head] == label].double()
            expected = rows.mean(0) if len(rows) else torch.zeros(16, dtype=torch.float64)
            torch.testing.assert_close(mean[head, label].double(), expected, atol=1e-5, rtol=1e-5)
            if len(rows):
                torch.testing.assert_close(
                    squares[head, label].double(), rows.square().mean(0), atol=1e-3, rtol=1e-5
                )
