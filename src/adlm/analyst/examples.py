"""Training examples: noisy records with loss coefficients, or feature vectors with labels."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from adlm.paper.objective import Coefficients, loss


@dataclass(frozen=True)
class Examples:
    """Inputs, and the target of the loss for each.

    Attributes
    ----------
    x : (n, *shape) inputs.
    target : coefficients of the polynomial loss, or, for the cross-entropy, (n,) class codes or (n, M)
        probabilities of the classes; of a numeric target (n, 1) values.
    """

    x: Tensor
    target: Coefficients | Tensor

    def __len__(self) -> int:
        return len(self.x)

    def batch(self, rows: Tensor, device: torch.device) -> tuple[Tensor, Coefficients | Tensor]:
        """The examples of given rows, on a device."""
        if isinstance(self.target, Tensor):
            return self.x[rows].to(device), self.target[rows].to(device)
        return self.x[rows].to(device), self.target.take(rows).to(device)


def batch_loss(logits: Tensor, target: Coefficients | Tensor) -> Tensor:
    """The loss of a batch: the released polynomial, cross-entropy, or the squared error of one output."""
    if isinstance(target, Tensor):
        if logits.shape[1] == 1:
            return torch.nn.functional.mse_loss(logits, target)
        return torch.nn.functional.cross_entropy(logits, target)
    return loss(logits, target)
