"""Networks by name: the paper's, its authors', and other kinds. Any of them, or any module, can be trained.

Auto-encoder, restricted Boltzmann machine and deep belief network learn records before labels. Their first
stage reads released records alone, so a release without labels, which costs no eps3, is enough. With labels,
`fit` runs the first stage and then trains the whole network by the released polynomial loss, as any other.

The steps of a sequence (`places`) are the rows of an image, or the numbers of a flat record. The first affine
transformation, which Delta_h0 counts, is that of every gate at every step for the recurrent network, and the
embedding of every step for the one with attention. Relevance propagation does not support these two.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adlm.errors import UserError
from adlm.paper.layers import LocalResponseNorm, MinMax, Standardise, bounded_head

Shape = tuple[int, ...]
EPOCHS, BATCH = 20, 100  # of learning records without labels
RATE, MOMENTUM = 0.05, 0.9  # of contrastive divergence
NEAR = (-1.0, 2.0)  # noisy values are clipped to this; a Boltzmann machine would diverge beyond it


def _as_maps(shape: Shape, places: int) -> tuple[list[nn.Module], int]:
    """Layers that give records a channel axis where they have none, and the number of channels."""
    if len(shape) == places + 1:
        return [], shape[0]
    if len(shape) == places:
        return [nn.Unflatten(1, (1, shape[0]))], 1
    raise UserError(
        f"this network takes records of {places} or {places + 1} axes, got shape {shape}; choose mlp"
    )


def _convolution(maps: int, out: int, patch: int) -> list[nn.Module]:
    """Convolution that keeps the size, ReLU, LRN, pooling by two."""
    return [
        nn.Conv2d(maps, out, patch, padding=patch // 2),
        nn.ReLU(),
        LocalResponseNorm(),
        nn.MaxPool2d(2, ceil_mode=True),
    ]


def _width(layers: list[nn.Module], shape: Shape) -> int:
    """Output size of layers that end in a flat vector."""
    with torch.no_grad():
        return int(nn.Sequential(*layers).eval()(torch.zeros(1, *shape)).shape[1])


def _dense_head(layers: list[nn.Module], shape: Shape, hidden: int, classes: int) -> nn.Sequential:
    """Flatten, a dense layer normalised to [0, 1], and the output layer h W^T (Eq. 23 has no bias there)."""
    width = _width([*layers, nn.Flatten()], shape)
    return nn.Sequential(*layers, nn.Flatten(), *bounded_head(width, hidden, classes))


def paper_mnist(shape: Shape, classes: int) -> nn.Module:
    """Two convolutional layers of 32 and 64 maps with 5x5 patches, a dense layer of 25; batches of 1,800."""
    layers, maps = _as_maps(shape, 2)
    return _dense_head([*layers, *_convolution(maps, 32, 5), *_convolution(32, 64, 5)], shape, 25, classes)


def paper_cifar10(shape: Shape, classes: int) -> nn.Module:
    """Three of 128, 128 and 256 maps, 3x3 patches and then 5x5, a dense layer of 30; batches of 7,200."""
    layers, maps = _as_maps(shape, 2)
    convolutions = [*_convolution(maps, 128, 3), *_convolution(128, 128, 5), *_convolution(128, 256, 5)]
    return _dense_head([*layers, *convolutions], shape, 30, classes)


def _as_published(network: nn.Sequential) -> nn.Sequential:
    """Weights from a normal distribution of deviation 0.1 truncated at twice that, biases of 0.1."""
    for layer in network:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.trunc_normal_(layer.weight, std=0.1, a=-0.2, b=0.2)
            nn.init.constant_(layer.get_parameter("bias"), 0.1)
    return network


def _authors_mnist(shape: Shape, classes: int, first: int, second: int) -> nn.Module:
    layers, maps = _as_maps(shape, 2)
    # Pooling before ReLU gives the same as after it, at a quarter of the cost.
    body = [
        *layers,
        nn.Hardtanh(-10, 10),
        *(nn.Conv2d(maps, first, 5, padding=2), nn.MaxPool2d(2, ceil_mode=True), nn.ReLU()),
        *(nn.Conv2d(first, second, 5, padding=2), nn.MaxPool2d(2, ceil_mode=True), nn.ReLU()),
        nn.Flatten(),
    ]
    dense = [nn.Linear(_width(body, shape), 25), Standardise(25), nn.Hardtanh(0, 1), nn.Linear(25, classes)]
    return _as_published(nn.Sequential(*body, *dense))


def authors_mnist(shape: Shape, classes: int) -> nn.Module:
    """The MNIST network as published by its authors: 32 and 64 maps and 25 neurons as in the text.

    Inputs are clipped to [-10, 10], there is no LRN, the dense layer has batch normalisation and a clip to
    [0, 1], and the output layer has a bias.
    """
    return _authors_mnist(shape, classes, 32, 64)


def authors_mnist_quarter(shape: Shape, classes: int) -> nn.Module:
    """The same with 8 and 16 maps: for trials."""
    return _authors_mnist(shape, classes, 8, 16)


def authors_cifar10(shape: Shape, classes: int) -> nn.Module:
    """The CIFAR-10 network as published by its authors, without the skip connection.

    The middle 20 by 20 of an image, a first convolution of stride 2 (so Delta_h0 counts 2 times 10 by 10
    places of 3 by 3 by 3 patches, 5,400), 128, 128 and 256 maps, a dense layer of 30.
    """
    layers, maps = _as_maps(shape, 2)
    body = [
        *layers,
        nn.ZeroPad2d(-max(0, (shape[-1] - 20) // 2)),  # negative padding crops to the middle of the image
        *(nn.Conv2d(maps, 128, 3, stride=2, padding=1), nn.ReLU(), nn.BatchNorm2d(128)),
        *(nn.Conv2d(128, 128, 5, padding=2), nn.ReLU(), nn.BatchNorm2d(128)),
        *(nn.Conv2d(128, 256, 5, padding=2), nn.ReLU(), nn.BatchNorm2d(256)),
        *(nn.AvgPool2d(2), nn.Flatten()),
    ]
    dense = [nn.Linear(_width(body, shape), 30), Standardise(30), nn.Hardtanh(-1, 1), nn.Linear(30, classes)]
    return nn.Sequential(*body, *dense)


def small_cnn(shape: Shape, classes: int) -> nn.Module:
    """The paper's MNIST network with 8 and 16 maps: for trials and for relevance."""
    layers, maps = _as_maps(shape, 2)
    return _dense_head([*layers, *_convolution(maps, 8, 5), *_convolution(8, 16, 5)], shape, 25, classes)


def mlp(shape: Shape, classes: int) -> nn.Module:
    """Two dense layers of 128 and 25 on flattened records of any shape."""
    layers = [nn.Flatten(), nn.Linear(math.prod(shape), 128), nn.ReLU(), MinMax(128)]
    return _dense_head(layers, shape, 25, classes)


def cnn1d(shape: Shape, classes: int) -> nn.Module:
    """Two one-dimensional convolutions of 16 and 32 maps with patches of 5, for series and rows."""
    layers, maps = _as_maps(shape, 1)
    first = [
        nn.Conv1d(maps, 16, 5, padding=2),
        nn.ReLU(),
        LocalResponseNorm(),
        nn.MaxPool1d(2, ceil_mode=True),
    ]
    second = [nn.Conv1d(16, 32, 5, padding=2), nn.ReLU(), LocalResponseNorm(), nn.AdaptiveAvgPool1d(4)]
    return _dense_head([*layers, *first, *second], shape, 25, classes)


class ResidualBlock(nn.Module):
    """x + relu(conv(relu(conv(x)))), then LRN."""

    def __init__(self, maps: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(maps, maps, 3, padding=1)
        self.second = nn.Conv2d(maps, maps, 3, padding=1)
        self.bound = LocalResponseNorm()

    def forward(self, x: Tensor) -> Tensor:
        bounded: Tensor = self.bound(x + torch.relu(self.second(torch.relu(self.first(x)))))
        return bounded


def residual_cnn(shape: Shape, classes: int) -> nn.Module:
    """A convolution of 16 maps and two residual blocks."""
    layers, maps = _as_maps(shape, 2)
    body = [*_convolution(maps, 16, 5), ResidualBlock(16), nn.MaxPool2d(2, ceil_mode=True), ResidualBlock(16)]
    return _dense_head([*layers, *body, nn.AdaptiveAvgPool2d(4)], shape, 25, classes)


def places(shape: Shape) -> tuple[int, int]:
    """Number of steps of a record, and of numbers in each: rows of an image, else single numbers."""
    if not 1 <= len(shape) <= 3:
        raise UserError(f"this network takes records of one to three axes, got shape {shape}; choose mlp")
    if len(shape) == 1:
        return shape[0], 1
    return (shape[0], shape[1]) if len(shape) == 2 else (shape[1], shape[0] * shape[2])


class _ByPlace(nn.Module):
    """A network on sequences (n, places, numbers)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape, (self.count, self.width) = shape, places(shape)

    def _series(self, x: Tensor) -> Tensor:
        rows = x.movedim(1, 2) if len(self.shape) == 3 else x
        return rows.reshape(len(x), self.count, self.width)


class Recurrent(_ByPlace):
    """An LSTM of 32 units; its last state, in [-1, 1], is the input of the bounded head."""

    def __init__(self, shape: Shape, classes: int, units: int = 32) -> None:
        super().__init__(shape)
        self.series = nn.LSTM(self.width, units, batch_first=True)
        self.head = bounded_head(units, 25, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Give (n, classes) scores."""
        answer: Tensor = self.head(self.series(self._series(x))[0][:, -1])
        return answer


class Attention(_ByPlace):
    """Embeddings in 32 dimensions with learnt positions, one layer of attention, and mean pooling."""

    def __init__(self, shape: Shape, classes: int, units: int = 32) -> None:
        super().__init__(shape)
        self.embed = nn.Linear(self.width, units)
        self.position = nn.Embedding(self.count, units)
        self.encoder = nn.TransformerEncoderLayer(units, 4, 2 * units, dropout=0.0, batch_first=True)
        self.head = bounded_head(units, 25, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Give (n, classes) scores."""
        embedded = self.embed(self._series(x))
        position = self.position(torch.arange(self.count, device=x.device))
        answer: Tensor = self.head(self.encoder(embedded + position).mean(1))
        return answer


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


NETWORKS: dict[str, Callable[[Shape, int], nn.Module]] = {
    "paper-mnist": paper_mnist,
    "paper-cifar10": paper_cifar10,
    "authors-mnist": authors_mnist,
    "authors-mnist-quarter": authors_mnist_quarter,
    "authors-cifar10": authors_cifar10,
    "small-cnn": small_cnn,
    "residual-cnn": residual_cnn,
    "cnn1d": cnn1d,
    "mlp": mlp,
    "recurrent": Recurrent,
    "attention": Attention,
    "auto-encoder": AutoEncoder,
    "rbm": Boltzmann,
    "deep-belief": DeepBelief,
}
BATCH_SIZE = 1800
BATCH_SIZES = {"paper-mnist": 1800, "paper-cifar10": 7200, "authors-cifar10": 7200}
_BUILT_AS = "built_as"


def build(name: str, shape: Shape, classes: int) -> nn.Module:
    """The network of that name for records of ``shape``, freshly initialised."""
    if name not in NETWORKS:
        raise UserError(f"network must be one of {', '.join(NETWORKS)} (got {name!r}).")
    built = NETWORKS[name](tuple(shape), classes)
    for weight in built.parameters():
        if weight.dim() == 4:  # channels last: convolutions, pooling and LRN are faster
            weight.data = weight.data.contiguous(memory_format=torch.channels_last)
    object.__setattr__(built, _BUILT_AS, name)  # a plain attribute, not in the state dict
    return built


def initialised(
    network: str | nn.Module, shape: Shape, classes: int, seed: int
) -> tuple[nn.Module, dict[str, object]]:
    """A network by name, with weights drawn from the seed, or a module; and how a model describes it.

    Parameters
    ----------
    network : a name of `NETWORKS`, or a module, which is returned as it is.
    shape, classes : of a record, and the number of outputs.
    seed : of the weights.
    """
    if isinstance(network, nn.Module):
        return network, {"kind": "custom", "name": type(network).__name__, "shape": list(shape)}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        built = build(network, shape, classes)
    return built, {"kind": "network", "name": network, "shape": list(shape)}


def in_units(network: nn.Module, mean: float = 0.0, sd: float = 1.0) -> nn.Sequential:
    """Put a layer on a network of one output that turns standard deviations into the units of a target.

    Parameters
    ----------
    network : gives (n, 1) numbers of standard deviations from the mean.
    mean, sd : of the target, in its units.
    """
    last = nn.Linear(1, 1)
    with torch.no_grad():
        last.weight.fill_(sd)
        last.bias.fill_(mean)
    return nn.Sequential(network, last.eval())


def name_of(network: nn.Module) -> str:
    """The name of a network made by `build`; the name of its class for any other."""
    return str(getattr(network, _BUILT_AS, type(network).__name__))


def proposed(shape: Shape) -> str:
    """The paper's network for grey or colour images, mlp for other records."""
    if len(shape) not in (2, 3):
        return "mlp"
    return "paper-cifar10" if len(shape) == 3 and shape[0] > 1 else "paper-mnist"


def batch_size(name: str | None) -> int:
    """|L| of the paper for its networks, and 1,800 for every other."""
    return BATCH_SIZES.get(name or "", BATCH_SIZE)
