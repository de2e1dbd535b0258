"""Pre-train a relevance network on public classes: random processes by default.

The paper trains it on the private records, without privacy. Here it is trained without them, so only the
average relevance costs privacy.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from adlm.errors import UserError
from adlm.runtime import progress

CLASSES = 40  # synthetic classes the network learns to separate


def synthetic(
    shape: tuple[int, ...], *, classes: int = CLASSES, per_class: int = 100, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Records (n, *shape) in [0, 1] of random classes, and their labels (n,).

    Grey squares get stroke classes, colour squares scenes; anything else gets classes that are random
    points of the unit box with noise around them.

    Parameters
    ----------
    shape : of a record.
    classes, per_class : numbers of classes, and of records of each.
    seed : of the draw.
    """
    generator = torch.Generator().manual_seed(seed)
    square = len(shape) >= 2 and shape[-1] == shape[-2] and shape[-1] >= 16
    if square and (len(shape) == 2 or shape[0] == 1):
        from adlm.public.priors import strokes

        images, labels = strokes.draw(classes, per_class, generator, shape[-1])
        return images.reshape(-1, *shape), labels
    if square and len(shape) == 3 and shape[0] == 3:
        from adlm.public.priors import scenes

        return scenes.draw(classes, per_class, generator, shape[-1])
    labels = torch.arange(classes).repeat_interleave(per_class)
    centres = torch.rand(classes, *shape, generator=generator)
    noise = 0.2 * torch.randn(len(labels), *shape, generator=generator)
    return (centres[labels] + noise).clamp(0, 1), labels


def pretrain(
    network: nn.Module,
    x: Tensor,
    labels: Tensor,
    *,
    epochs: int = 12,
    seed: int = 0,
) -> float:
    """Train a classifier of public records in place; return its accuracy on the last epoch's batches.

    Parameters
    ----------
    network : a classifier of at least as many outputs as there are labels.
    x, labels : (n, *shape) public records in [0, 1] and their class codes; never private records.
    epochs : the paper has 12 for MNIST and 50 for CIFAR-10; a smaller network needs fewer.
    """
    if len(x) != len(labels) or len(x) == 0 or epochs < 1:
        raise UserError(
            f"pre-training needs records, a label for each, and an epoch (got {len(x)}, {epochs})."
        )
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(seed)
    device = next(network.parameters()).device
    network.train()
    right = 0
    with progress.bar(epochs * len(x), "pre-training", "records") as advance:
        for _ in range(epochs):
            right = 0
            for rows in torch.randperm(len(x), generator=generator).split(100):  # type: ignore[no-untyped-call]
                logits, target = network(x[rows].to(device)), labels[rows].to(device)
                optimiser.zero_grad()
                torch.nn.functional.cross_entropy(logits, target).backward()  # type: ignore[no-untyped-call]
                optimiser.step()
                right += int((logits.argmax(1) == target).sum())
                advance(len(rows))
    network.eval()
    return right / len(x)
