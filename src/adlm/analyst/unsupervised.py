"""Networks that learn records before labels: auto-encoder, restricted Boltzmann machine, deep belief network.

Their first stage reads released records alone, so a release without labels, which costs no eps3, is enough.
With labels, `fit` runs the first stage and then trains the whole
network by the released polynomial loss, as any other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adlm.analyst.heads import bounded_head
from adlm.errors import UserError

Shape = tuple[int, ...]
EPOCHS, BATCH = 20, 100
RATE, MOMENTUM = 0.05, 0.9  # of contrastive divergence
NEAR = (-1.0, 2.0)  # noisy values are clipped to this; a Boltzmann machine would diverge beyond it


class Unsupervised(nn.Module):
    """A classifier whose lower layers can be trained on records alone, and can reconstruct them.

    Besides class scores it has `reconstruct`, which decodes the lower layers' code, and `learn_records`,
    which trains those layers.
    """

    def reconstruct(self, x: Tensor) -> Tensor:
        """Reconstruct (n, *shape) records from the lower layers' code."""
        raise NotImplementedError

    def learn_records(self, x: Tensor, *, seed: int = 0, epochs: int = EPOCHS) -> None:
        """Train the lower layers on (n, *shape) records, which may be noisy, without labels."""
        raise NotImplementedError

    @torch.no_grad()
    def error(self, x: Tensor) -> float:
        """Mean square difference between records and their reconstruction, in ranges of a feature."""
        self.eval()
        return float((self.reconstruct(x) - x).square().mean())


class AutoEncoder(Unsupervised):
    """An auto-encoder of 64 sigmoid units; the target is the released record itself."""

    def __init__(self, shape: Shape, classes: int, units: int = 64) -> None:
        super().__init__()
        self.shape, width = shape, math.prod(shape)
        self.encode = nn.Sequential(nn.Flatten(), nn.Linear(width, units), nn.Sigmoid())
        self.decode = nn.Linear(units, width)
        self.head = bounded_head(units, 25, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Give (n, classes) scores."""
        answer: Tensor = self.head(self.encode(x))
        return answer

    def reconstruct(self, x: Tensor) -> Tensor:
        """Reconstruct (n, *shape) records from their code."""
        flat: Tensor = self.decode(self.encode(x))
        return flat.view(-1, *self.shape)

    def learn_records(self, x: Tensor, *, seed: int = 0, epochs: int = EPOCHS) -> None:
        """Minimise the square error between a released record and its reconstruction."""
        lower = [*self.encode.parameters(), *self.decode.parameters()]
        optimiser = torch.optim.Adam(lower, lr=3e-3)
        self.train()
        for part in _batches(x, seed, epochs):
            optimiser.zero_grad()
            F.mse_loss(self.reconstruct(part), part).backward()  # type: ignore[no-untyped-call]
            optimiser.step()


class Boltzmann(Unsupervised):
    """A restricted Boltzmann machine of Gaussian visible units and 64 binary hidden ones."""

    def __init__(self, shape: Shape, classes: int, units: int = 64) -> None:
        super().__init__()
        self.shape, width = shape, math.prod(shape)
        self.layer = nn.Linear(width, units)
        nn.init.normal_(self.layer.weight, std=0.01)
        nn.init.zeros_(self.layer.bias)
        self.visible = nn.Parameter(torch.zeros(width))
        self.head = bounded_head(units, 25, classes)

    def hidden(self, x: Tensor) -> Tensor:
        """Probability of each hidden unit given (n, *shape) records."""
        return torch.sigmoid(self.layer(x.flatten(1)))

    def forward(self, x: Tensor) -> Tensor:
        """Give (n, classes) scores."""
        answer: Tensor = self.head(self.hidden(x))
        return answer

    def down(self, hidden: Tensor) -> Tensor:
        """Mean of the visible units given the hidden ones."""
        return hidden @ self.layer.weight + self.visible

    def reconstruct(self, x: Tensor) -> Tensor:
        """Reconstruct (n, *shape) records by one Gibbs step."""
        return self.down(self.hidden(x)).view(-1, *self.shape)

    @torch.no_grad()
    def learn_records(self, x: Tensor, *, seed: int = 0, epochs: int = EPOCHS) -> None:
        """Contrastive divergence of one step (Hinton 2002), with momentum."""
        speed = [torch.zeros_like(p) for p in (self.layer.weight, self.layer.bias, self.visible)]
        self.visible.copy_(x.clamp(*NEAR).flatten(1).mean(0))
        generator = torch.Generator().manual_seed(seed)
        for part in _batches(x.clamp(*NEAR), seed, epochs):
            v = part.flatten(1)
            h = self.hidden(v)
            v1 = self.down(torch.bernoulli(h, generator=generator))
            h1 = self.hidden(v1)
            steps = ((h.T @ v - h1.T @ v1) / len(v), (h - h1).mean(0), (v - v1).mean(0))
            for p, s, step in zip(
                (self.layer.weight, self.layer.bias, self.visible), speed, steps, strict=True
            ):
                p.add_(s.mul_(MOMENTUM).add_(step, alpha=RATE))


class _ConvolutionalMachine(nn.Module):
    """A convolutional Boltzmann machine: maps of binary units over patches, pooled by two."""

    def __init__(self, maps: int, units: int, patch: int = 5) -> None:
        super().__init__()
        self.layer = nn.Conv2d(maps, units, patch, padding=patch // 2)
        nn.init.normal_(self.layer.weight, std=0.01)
        nn.init.constant_(self.layer.get_parameter("bias"), -1.0)  # sparse units, as in Lee et al. 2009
        self.visible = nn.Parameter(torch.zeros(maps, 1, 1))
        self.pool = nn.MaxPool2d(2, ceil_mode=True)

    def hidden(self, v: Tensor) -> Tensor:
        return torch.sigmoid(self.layer(v))

    def forward(self, v: Tensor) -> Tensor:
        pooled: Tensor = self.pool(self.hidden(v))
        return pooled

    def down(self, hidden: Tensor) -> Tensor:
        """Mean of the visible maps given the hidden ones."""
        return F.conv_transpose2d(hidden, self.layer.weight, padding=self.layer.padding[0]) + self.visible  # type: ignore[arg-type]

    @torch.no_grad()
    def learn(self, x: Tensor, seed: int, epochs: int, rate: float = RATE) -> None:
        """Contrastive divergence of one step; steps are means over records and places."""
        generator = torch.Generator().manual_seed(seed)
        self.visible.copy_(x.mean((0, 2, 3))[:, None, None])
        speed = torch.zeros_like(self.layer.weight)
        for v in _batches(x, seed, epochs):
            h = self.hidden(v)
            v1 = self.down(torch.bernoulli(h, generator=generator))
            h1 = self.hidden(v1)
            places = len(v) * h.shape[2] * h.shape[3]
            step = (self._pairs(v, h) - self._pairs(v1, h1)) / places
            self.layer.weight.add_(speed.mul_(MOMENTUM).add_(step, alpha=rate))
            self.layer.get_parameter("bias").add_((h - h1).mean((0, 2, 3)), alpha=rate)
            self.visible.add_((v - v1).mean((0, 2, 3))[:, None, None], alpha=rate)

    def _pairs(self, v: Tensor, h: Tensor) -> Tensor:
        """Sum over records and places of hidden times visible, (units, maps, patch, patch)."""
        padding = self.layer.padding[0]
        products = F.conv2d(v.transpose(0, 1), h.transpose(0, 1), padding=padding)
        return products.transpose(0, 1)


class DeepBelief(Unsupervised):
    """Two convolutional Boltzmann machines of 8 and 16 maps, each trained on the output of the one below."""

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        if len(shape) not in (2, 3):
            raise UserError(f"the deep belief network takes images, got records of shape {shape}; choose rbm")
        self.shape, maps = shape, 1 if len(shape) == 2 else shape[0]
        self.first, self.second = _ConvolutionalMachine(maps, 8), _ConvolutionalMachine(8, 16)
        with torch.no_grad():
            width = self._top(torch.zeros(1, *shape)).flatten(1).shape[1]
        # Units are sparse, so the head hardly distinguishes records unless each record is standardised.
        self.standardise = nn.LayerNorm(width, elementwise_affine=False)
        self.head = bounded_head(width, 25, classes)

    def _maps(self, x: Tensor) -> Tensor:
        return x.unsqueeze(1) if len(self.shape) == 2 else x

    def _top(self, x: Tensor) -> Tensor:
        pooled: Tensor = self.second(self.first(self._maps(x)))
        return pooled

    def forward(self, x: Tensor) -> Tensor:
        """Give (n, classes) scores."""
        answer: Tensor = self.head(self.standardise(self._top(x).flatten(1)))
        return answer

    def reconstruct(self, x: Tensor) -> Tensor:
        """Reconstruct (n, *shape) records from the lower machine's code."""
        v = self._maps(x)
        return self.first.down(self.first.hidden(v)).view(-1, *self.shape)

    def learn_records(self, x: Tensor, *, seed: int = 0, epochs: int = EPOCHS) -> None:
        """Train the lower machine on records, then the upper one on the lower one's output."""
        v = self._maps(x).clamp(*NEAR)
        self.first.learn(v, seed, epochs)
        with torch.no_grad():
            below = torch.cat([self.first(part) for part in torch.split(v, 1000)])
        self.second.learn(below, seed, epochs)


def _batches(x: Tensor, seed: int, epochs: int) -> Iterator[Tensor]:
    """Records in random batches, epoch after epoch."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        for rows in torch.split(torch.randperm(len(x), generator=generator), BATCH):
            yield x[rows]
