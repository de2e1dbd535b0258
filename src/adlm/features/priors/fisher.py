"""Directions that separate synthetic classes: Fisher's discriminants of a random process.

Variation within synthetic classes is nuisance; variation between them may be signal. With W the
within-class covariance and B the between-class scatter, the directions v of largest v'Bv / v'Wv come first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from adlm.errors import UserError
from adlm.features.base import PriorStatistics


@dataclass(frozen=True)
class ClassStatistics:
    """First and second moments of a family of synthetic classes in p features.

    Attributes
    ----------
    mean : (p,) mean of the class centres.
    within : (p, p) covariance within classes, pooled.
    centres : (classes, p) class centres less `mean`.
    """

    mean: Tensor
    within: Tensor
    centres: Tensor


@dataclass(frozen=True)
class Directions:
    """Fisher directions, best first.

    Attributes
    ----------
    mean : (p,) to subtract from features.
    projection : (p, width) columns of unit within-class variance (plus ridge), tempered.
    spectrum : (width,) between-class scatter along each direction, as a share of the total.
    """

    mean: Tensor
    projection: Tensor
    spectrum: Tensor


def class_statistics(features: Tensor, per_class: int) -> ClassStatistics:
    """Moments of features (classes * per_class, p) with the records of a class adjacent."""
    if per_class < 2 or len(features) % per_class:
        raise UserError(
            f"class statistics need at least 2 records a class and whole classes "
            f"(got {len(features)} records, {per_class} a class)"
        )
    records = features.view(-1, per_class, features.shape[1])
    centres = records.mean(1)
    spread = (records - centres[:, None]).flatten(0, 1)
    within = spread.T @ spread / (len(records) * (per_class - 1))
    mean = centres.mean(0)
    return ClassStatistics(mean, within, centres - mean)


def directions(
    families: Sequence[ClassStatistics], width: int, *, ridge: float = 0.3, temper: float = 0.0
) -> Directions:
    """Fisher directions common to several families of classes.

    Within-class covariances are averaged after scaling to equal trace, and so are between-class scatters
    after whitening. `ridge`, relative to the mean diagonal, bounds the scale of directions in which the
    process varies little. `temper` in [0, 1] scales direction j by spectrum_j^(-temper / 2): real
    classes are broader than synthetic ones, most so along what best separates synthetic classes.

    Parameters
    ----------
    families : statistics of each family of classes.
    width : directions to keep.
    ridge, temper : see above.
    """
    p = len(families[0].mean)
    most = min(p, sum(len(f.centres) - 1 for f in families))
    if not 1 <= width <= most:
        raise UserError(f"{p} features of these classes have 1 to {most} directions, got width {width}")
    mean = torch.stack([family.mean for family in families]).mean(0)
    within = torch.stack([f.within / f.within.diagonal().mean() for f in families]).mean(0)
    within.diagonal().add_(ridge * within.diagonal().mean())
    root = torch.linalg.cholesky(within)
    whitened = [torch.linalg.solve_triangular(root, f.centres.T, upper=False) for f in families]
    scatter = torch.cat([w / w.norm() / math.sqrt(len(families)) for w in whitened], 1)
    few = scatter.shape[1] < p  # then the small Gram matrix has the same spectrum
    values, vectors = torch.linalg.eigh((scatter.T @ scatter if few else scatter @ scatter.T).double())
    order = values.argsort(descending=True)[:width]
    spectrum = values[order].clamp_min(0).float()
    axes = vectors[:, order].float()
    if few:
        axes = torch.nn.functional.normalize(scatter @ axes, dim=0)
    basis = torch.linalg.solve_triangular(root.T, axes, upper=True)
    # Signs of eigenvectors are arbitrary: fix them, so that the same seed gives the same map everywhere.
    largest = basis.abs().argmax(0)
    basis = basis * basis[largest, torch.arange(width)].sign()
    factor = (spectrum / spectrum[0].clamp_min(1e-12)).clamp_min(1e-3) ** (-temper / 2)
    return Directions(mean, basis * factor, spectrum)


def prior_statistics(z: Tensor, per_class: int) -> PriorStatistics:
    """Statistics of coordinates z (classes * per_class, k) of a feature map."""
    moments = class_statistics(z, per_class)
    # The scatter of centres overstates the scatter of true means by the within-class variance over m.
    between = moments.centres.var(0) - moments.within.diagonal() / per_class
    return PriorStatistics(
        typical=z.abs().mean(0), weight=between.clamp_min(0), within=moments.within, mean=moments.mean
    )
