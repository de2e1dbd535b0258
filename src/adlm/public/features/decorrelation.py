"""A decorrelation matrix for a table's values, computed from their released second moments.

Gradient descent with noise learns first what varies most. Redundant columns vary together, but their
differences often separate the classes. The matrix (S + r I)^(-1/2) corrects this as far as S is known:
r follows the noise on S, so that only directions whose variance exceeds the noise count.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from adlm.privacy.triangle import symmetric

Reals = npt.NDArray[np.float64]

RIDGE = 1.0  # over the spectral norm of the noise; fixed with the other constants of tables
LEAST_RIDGE = 1e-3  # over the mean eigenvalue
GRID = 2.0**20  # grid of an entry: products with standardised values add up exactly
MOST_COLUMNS = 512
LARGEST_ENTRY = 2.0**8


def unit_rows(values: Reals) -> Reals:
    """Scale (n, d) rows to length 1; a row of zeros stays. On a grid, so no row depends on its batch."""
    length = np.sqrt((values * values).sum(1, keepdims=True))
    return np.asarray(values / np.maximum(length, 1e-9))


def noise_norm(sd: float, columns: int) -> float:
    """Approximate spectral norm of symmetric noise with this standard deviation on its diagonal."""
    return sd * math.sqrt(2.0 * columns)


def decorrelation(triangle: npt.NDArray[np.int64], sd: float) -> Reals:
    """Return the (d, d) matrix that values are multiplied by, on its grid.

    Rows had length 1, so the trace is their number. Multiplied by the result, their mean square is still 1.

    Parameters
    ----------
    triangle : (d, d) released second moments of rows of length 1, the upper half.
    sd : standard deviation of the noise on the diagonal, in the same unit.
    """
    second = symmetric(triangle)
    total, columns = float(np.trace(second)), len(second)
    if total <= noise_norm(sd, columns):  # dominated by noise
        return np.eye(columns)
    variance, directions = np.linalg.eigh(second / total)
    variance = np.maximum(variance, 0.0)
    ridge = max(RIDGE * noise_norm(sd, columns) / total, LEAST_RIDGE / columns)
    stretch = 1 / np.sqrt(variance + ridge)
    variance_ratio = float((variance * stretch**2).sum()) / max(float(variance.sum()), 1e-9)
    matrix = (directions * (stretch / math.sqrt(max(variance_ratio, 1e-9)))) @ directions.T
    return np.asarray(np.rint(np.clip(matrix, -LARGEST_ENTRY, LARGEST_ENTRY) * GRID) / GRID)
