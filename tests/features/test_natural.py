"""Features of natural images, learnt in miniature from a few scenes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from adlm.errors import UserError
from adlm.features import build
from adlm.features.base import PriorStatistics, unit_norm
from adlm.features.narrowed import narrow
from adlm.features.natural import (
    SHIPPED,
    SHIPPED_FOLDER,
    NaturalImages,
    compress,
    expand,
    restore_prior,
    store_prior,
)
from adlm.features.priors import scenes
from adlm.features.priors.fisher import prior_statistics
from adlm.features.priors.natural import build_natural, principal_directions


def build_small(seed: int) -> dict[str, torch.Tensor]:
    return build_natural(seed, classes=20, per_class=4, atoms=6, width=24, samples=2000)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("weights") / "small.safetensors"
    save_file({name: value.contiguous() for name, value in build_small(0).items()}, path)
    return str(path)


@pytest.fixture(scope="module")
def pictures() -> torch.Tensor:
    return scenes.draw(12, 4, torch.Generator().manual_seed(9))[0]


def test_rows_are_unit_vectors_and_blind_to_the_flip(small: str, pictures: torch.Tensor) -> None:
    features = NaturalImages(weights=small)
    z = features(pictures)
    assert z.shape == (48, 24)
    assert z.dtype == torch.float32
    assert torch.allclose(z.norm(dim=1), torch.ones(48), atol=1e-5)
    assert torch.allclose(z, features(pictures.flip(3)), atol=1e-4)
    assert not torch.allclose(z, features(pictures.flip(2)), atol=1e-2)


@pytest.mark.parametrize("value", [0.0, 0.5, 1.0])
def test_flat_pictures_have_finite_features(small: str, value: float) -> None:
    z = NaturalImages(weights=small)(torch.full((1, 3, 32, 32), value))
    assert bool(z.isfinite().all())
    assert float(z.norm()) <= 1.0 + 1e-5


def test_fewer_coordinates_are_the_leading_ones_at_unit_norm(small: str, pictures: torch.Tensor) -> None:
    wide, slim = NaturalImages(weights=small)(pictures), NaturalImages(10, small)(pictures)
    leading = wide[:, :10] / wide[:, :10].norm(dim=1, keepdim=True)
    assert torch.allclose(slim, leading, atol=1e-4)


def test_a_spec_makes_the_same_map_again(small: str) -> None:
    features = NaturalImages(16, small)
    again = build(features.spec())
    assert again.fingerprint() == features.fingerprint()
    assert NaturalImages(15, small).fingerprint() != features.fingerprint()


def test_the_seed_decides_the_weights() -> None:
    first, again, other = build_small(3), build_small(3), build_small(4)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["fine"], other["fine"])


def test_the_prior_describes_the_features_of_fresh_scenes(small: str) -> None:
    features = NaturalImages(16, small)
    assert features.prior is not None
    images, _ = scenes.draw(150, 2, torch.Generator().manual_seed(11))
    typical = features(images).abs().mean(0)
    # Eighty pictures of twenty classes taught the prior: it is right about sizes, not about digits.
    assert float((typical / features.prior.typical).log().abs().mean()) < 0.5
    assert torch.linalg.eigvalsh(features.prior.within).min() > -1e-3


def test_rounding_a_projection_to_eight_bits_hardly_turns_it() -> None:
    matrix = (
        torch.randn((300, 20), generator=torch.Generator().manual_seed(1))
        * torch.linspace(0.01, 3, 300)[:, None]
    )
    error = expand(compress(matrix)) - matrix
    assert float(error.norm() / matrix.norm()) < 0.02


def test_a_prior_survives_storage() -> None:
    generator = torch.Generator().manual_seed(2)
    prior = prior_statistics(torch.randn((300, 8), generator=generator), 10)
    again = restore_prior(store_prior(prior))
    assert torch.allclose(again.within, prior.within, atol=1e-3)
    assert torch.equal(again.mean, prior.mean)


def test_prior_statistics_tell_between_from_within() -> None:
    generator = torch.Generator().manual_seed(3)
    centres = torch.randn((400, 2), generator=generator) * torch.tensor([2.0, 0.0])
    records = centres.repeat_interleave(5, 0) + torch.randn((2000, 2), generator=generator)
    prior = prior_statistics(records, 5)
    # Standard errors: 0.29 for the first variance between classes, 0.02 for the others.
    assert float(prior.weight[0]) == pytest.approx(4.0, abs=1.5)
    assert float(prior.weight[1]) == pytest.approx(0.0, abs=0.1)
    assert torch.allclose(prior.within, torch.eye(2), atol=0.2)


def test_a_narrowed_prior_has_the_length_of_the_whole() -> None:
    whole = PriorStatistics(
        typical=torch.ones(4),
        weight=torch.ones(4),
        within=torch.eye(4),
        mean=torch.tensor([1.0, 0.0, 0.0, 0.0]),
    )
    slim = narrow(whole, 2)
    length = slim.within.diagonal() + slim.weight + slim.mean.square()
    assert float(length.sum()) == pytest.approx(9.0)


def test_principal_directions_are_those_of_the_covariance() -> None:
    generator = torch.Generator().manual_seed(4)
    rows = torch.randn((500, 30), generator=generator) * torch.logspace(0, -2, 30)
    values, directions = principal_directions(rows, 5, generator)
    exact, vectors = torch.linalg.eigh(rows.T @ rows / 500)
    assert torch.allclose(values, exact.flip(0)[:5], rtol=1e-3)
    assert torch.allclose((directions * vectors.flip(1)[:, :5]).sum(0).abs(), torch.ones(5), atol=1e-2)


def test_the_shipped_features_tell_scenes_apart_that_they_never_saw() -> None:
    features = NaturalImages(100)
    images, labels = scenes.draw(20, 8, torch.Generator().manual_seed(12345))
    z = features(images).reshape(20, 8, -1)
    means, rest = z[:, :5].mean(1), z[:, 5:].reshape(60, -1)
    guess = torch.cdist(rest, means).argmin(1)
    # Guessing finds 5 in 100.
    assert float((guess == labels.reshape(20, 8)[:, 5:].reshape(60)).float().mean()) > 0.7


def test_the_shipped_prior_is_a_prior_of_unit_vectors() -> None:
    features = NaturalImages(300)
    prior = features.prior
    assert prior is not None
    length = float((prior.within.diagonal() + prior.weight + prior.mean.square()).sum())
    assert length == pytest.approx(1.0, abs=0.05)
    assert float(torch.linalg.eigvalsh(prior.within).min()) > -1e-5
    assert (SHIPPED_FOLDER / f"{SHIPPED}.safetensors").stat().st_size < 12e6


def test_the_compiled_form_gives_what_pytorch_gives_in_double_precision(pictures: torch.Tensor) -> None:
    features = NaturalImages(300)
    found, blocks = features(pictures), features.blocks
    raw = blocks(pictures)
    blocks.double()
    wide = blocks.products(pictures.double())
    plain = unit_norm(wide @ features.projection.double() - features.offset)
    assert float((found - plain).abs().max()) < 5e-5  # roots of small means, and flat patches
    torch.testing.assert_close(raw.double(), wide, rtol=0, atol=1e-3)


def test_mistakes_are_told_in_a_sentence(small: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="have 1 to 24 coordinates"):
        NaturalImages(25, small)
    with pytest.raises(UserError, match="no weights of natural-image features"):
        NaturalImages(weights=str(tmp_path / "missing.safetensors"))
    with pytest.raises(UserError, match="channels first"):
        NaturalImages(weights=small)(torch.zeros((2, 32, 32, 3)))
