"""Networks by name, the paper's among them. Any of them, or any other module, can be trained on a release."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from adlm.analyst.heads import bounded_head
from adlm.analyst.normalisation import LocalResponseNorm, MinMax, Standardise
from adlm.analyst.sequences import Attention, Recurrent
from adlm.analyst.unsupervised import AutoEncoder, Boltzmann, DeepBelief
from adlm.errors import UserError

Shape = tuple[int, ...]


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
