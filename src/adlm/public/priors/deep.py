"""The deep prior: a small convolutional network that tells random classes apart by a few noisy means.

A prototypical network (Snell, Swersky and Zemel 2017): a record belongs to the class whose prototype, the
mean of its other records, is nearest. Prototypes carry noise as large as that of a release, so the network
learns an embedding whose class means survive it. Classes come from a random process; nobody's record is seen.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from adlm.public.features.base import unit_norm
from adlm.public.features.deskew import deskew
from adlm.public.priors import scenes, shapes, strokes
from adlm.runtime import progress

Draw = Callable[[int, int, torch.Generator], tuple[Tensor, Tensor]]
PROCESSES: dict[str, Draw] = {
    "drawn": strokes.draw,
    "garments": shapes.draw,
    "photographs": lambda classes, per_class, generator: scenes.draw(classes, per_class, generator),
}
LEADING = (16, 32, 64)  # any of these many leading coordinates must serve
WAY, SHOTS = 30, 16  # classes of an episode, records of each
LOUDEST = 0.5  # length of the noise on a prototype, where records have length 1; drawn anew up to this


class Embedding(nn.Module):
    """Images (n, H, W) or (n, 3, H, W) to 64 numbers by strided convolutions; no layer mixes records."""

    def __init__(self, channels: int, size: int, *, deskewed: bool = False) -> None:
        super().__init__()
        self.channels, self.deskewed = channels, deskewed
        side = math.ceil(size / 8)
        self.layers = nn.Sequential(
            nn.Conv2d(channels, 32, 5, stride=2, padding=2), nn.GroupNorm(8, 32), nn.ReLU(),
            nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.GroupNorm(8, 64), nn.ReLU(),
            nn.Conv2d(64, 64, 3, stride=2, padding=1), nn.GroupNorm(8, 64), nn.ReLU(),
            nn.Flatten(), nn.Linear(64 * side * side, LEADING[-1]),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        """Embed a batch: (n, 64)."""
        images = deskew(x) if self.deskewed else x
        embedded: Tensor = self.layers(images[:, None] if self.channels == 1 else images)
        return embedded


def episode_loss(
    z: Tensor, length: float, temperature: Tensor, generator: torch.Generator
) -> tuple[Tensor, float]:
    """Cross-entropy of records (way, shots, k) against noisy prototypes, and the share that is right.

    A record's own prototype leaves the record out, as a mean over many others would.
    """
    way, shots, k = z.shape
    z = unit_norm(z.flatten(0, 1)).view(way, shots, k)
    means = z.mean(1)
    noise = torch.randn(way, k, generator=generator) * (length / math.sqrt(k))
    prototypes = means + noise
    logits = z @ prototypes.T - prototypes.square().sum(1) / 2  # (way, shots, way)
    others = (shots * means[:, None] - z) / (shots - 1) + noise[:, None]
    own = (z * others).sum(2) - others.square().sum(2) / 2
    same = torch.eye(way, dtype=torch.bool)[:, None]
    logits = torch.where(same, own[..., None], logits).flatten(0, 1) * temperature.exp()
    classes = torch.arange(way).repeat_interleave(shots)
    right = float((logits.argmax(1) == classes).float().mean())
    return functional.cross_entropy(logits, classes), right


def meta_train(
    family: str, *, steps: int, classes: int = 1500, seed: int = 0, rate: float = 2e-3
) -> tuple[Embedding, float]:
    """Train an embedding on classes of a random process; return it and its share of right answers at the end.

    Parameters
    ----------
    family : whose random process.
    steps : episodes of WAY classes with SHOTS records each.
    classes : how many the episodes draw from.
    seed : of the classes, the network and the episodes.
    """
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    images, _ = PROCESSES[family](classes, SHOTS, generator)
    images = images.view(classes, SHOTS, *images.shape[1:])
    network = Embedding(
        images.shape[2] if images.ndim == 5 else 1, images.shape[-1], deskewed=family == "drawn"
    )
    temperature = nn.Parameter(torch.tensor(math.log(10.0)))
    optimiser = torch.optim.AdamW([*network.parameters(), temperature], lr=rate, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, rate, total_steps=steps)
    recent = 0.0
    with progress.bar(steps, f"meta-training on {family}", "episodes") as advance:
        for _ in range(steps):
            chosen = torch.randperm(classes, generator=generator)[:WAY]
            z = network(images[chosen].flatten(0, 1)).view(WAY, SHOTS, -1)
            k = LEADING[int(torch.randint(len(LEADING), (1,), generator=generator))]
            length = LOUDEST * float(torch.rand(1, generator=generator))
            loss, right = episode_loss(z[..., :k], length, temperature, generator)
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            schedule.step()
            recent += (right - recent) * 0.05
            advance(1)
    return network.eval(), recent
