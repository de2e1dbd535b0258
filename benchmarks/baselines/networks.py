"""Networks that DP-SGD may train: no layer may mix the records of a batch."""

from __future__ import annotations

import copy
import itertools

import torch
from torch import nn

from adlm.errors import UserError
from adlm.paper import networks
from adlm.paper.networks import MinMax

Shape = tuple[int, ...]
COUPLING = (MinMax, nn.modules.batchnorm._BatchNorm)


def uncoupled(network: nn.Module) -> nn.Module:
    """Return a copy without min-max and the like, which scale a record by the others of its batch.

    Formal guarantees
    -----------------
    The gradient of a record's loss then depends on that record alone, which the sensitivity of DP-SGD
    rests on. Layers of another kind that mix records are refused.
    """
    copied = copy.deepcopy(network)
    for name, module in list(copied.named_modules()):
        if isinstance(module, MinMax):
            parent = copied.get_submodule(name.rpartition(".")[0])
            setattr(parent, name.rpartition(".")[2], nn.Identity())
        elif isinstance(module, COUPLING):
            raise UserError(
                f"DP-SGD cannot train layer {name!r} ({type(module).__name__}), which mixes the records of a "
                "batch; use group or layer normalisation"
            )
    return copied


def paper(shape: Shape, classes: int) -> nn.Module:
    """The paper's network for images of that shape, without layers that mix records."""
    name = "paper-cifar10" if len(shape) == 3 else "paper-mnist"
    return uncoupled(networks.build(name, shape, classes))


def tanh(shape: Shape, classes: int) -> nn.Module:
    """The bounded-activation networks of Papernot et al. 2021, for grey and for colour images."""
    if len(shape) == 2:
        first = [nn.Conv2d(1, 16, 8, stride=2, padding=3), nn.Tanh(), nn.MaxPool2d(2, 1)]
        second = [nn.Conv2d(16, 32, 4, stride=2), nn.Tanh(), nn.MaxPool2d(2, 1)]
        return _with_dense([nn.Unflatten(1, (1, shape[0])), *first, *second], shape, classes, 32)
    if len(shape) != 3:
        raise UserError(f"the tanh network takes images, got records of shape {shape}; use a linear head")
    layers: list[nn.Module] = []
    for index, (before, after) in enumerate(itertools.pairwise([shape[0], 32, 32, 64, 64, 128, 128])):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.Tanh()]
        if index % 2:
            layers.append(nn.AvgPool2d(2))
    return _with_dense(layers, shape, classes, 128)


def _with_dense(layers: list[nn.Module], shape: Shape, classes: int, hidden: int) -> nn.Module:
    with torch.no_grad():
        width = nn.Sequential(*layers, nn.Flatten())(torch.zeros(1, *shape)).shape[1]
    return nn.Sequential(
        *layers, nn.Flatten(), nn.Linear(width, hidden), nn.Tanh(), nn.Linear(hidden, classes)
    )


def linear(width: int, classes: int) -> nn.Module:
    """A linear head that starts at zero, for public features of unit norm."""
    head = nn.Linear(width, classes)
    torch.nn.init.zeros_(head.weight)
    torch.nn.init.zeros_(head.bias)
    return head
