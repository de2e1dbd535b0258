"""Centre and scale coefficients within each order, for all orders at once."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

NOTHING = 1e-30  # a squared norm


class OrderNorms(nn.Module):
    """Sums over the coordinates of each order, and back: products with a membership matrix.

    Parameters
    ----------
    orders : (width,) order of each coordinate.
    """

    members: Tensor
    first: Tensor
    averages: Tensor

    def __init__(self, orders: Tensor) -> None:
        super().__init__()
        members = functional.one_hot(orders).float().T.contiguous()
        self.register_buffer("members", members, persistent=False)
        self.register_buffer("first", members.argmax(1), persistent=False)
        self.register_buffer("averages", members / members.sum(1, keepdim=True), persistent=False)

    def means(self, rows: Tensor) -> Tensor:
        """Mean of each order of rows (n, width): (n, orders)."""
        return rows @ self.averages.T

    def spread(self, values: Tensor) -> Tensor:
        """Put a value of each order (n, orders) in all places of that order: (n, width)."""
        return values @ self.members

    def centred(self, rows: Tensor) -> Tensor:
        """Rows less the mean of each order, which is zero where an order is constant: (n, width)."""
        uneven = rows - self.spread(rows.index_select(1, self.first))
        return torch.addmm(uneven, self.means(uneven), self.members, alpha=-1)

    def norms(self, rows: Tensor) -> Tensor:
        """L2 norm of each order, at least 1e-15: (n, orders)."""
        return (rows.square() @ self.members.T).clamp_min(NOTHING).sqrt()  # a root has no gradient at zero
