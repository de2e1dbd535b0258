"""How a release stores a symmetric matrix, such as second moments: its upper triangle, zeros below."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def symmetric(triangle: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Fill the lower half of a released upper triangle."""
    upper = triangle.astype(np.float64)
    return np.asarray(upper + np.triu(upper, 1).T)
