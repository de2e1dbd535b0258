"""Forward passes of large batches, in chunks where that changes nothing.

The feature maps of a batch of 1,800 images are hundreds of megabytes for each layer. Layers that treat every
record by itself give the same in chunks, and chunks that fit a cache take half the time on a CPU. Layers
that use batch statistics, such as the paper's min-max, get the whole batch.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from adlm.paper.layers import LocalResponseNorm

ROWS = 256
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
ACTIVATIONS = (nn.ReLU, nn.Sigmoid, nn.Tanh, nn.LeakyReLU, nn.GELU, nn.ELU, nn.SiLU, nn.Hardtanh)
POOLING = (nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d)
AVERAGES = (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d)
SHAPES = (nn.Flatten, nn.Unflatten, nn.Identity, nn.Dropout)
NORMS = (nn.GroupNorm, nn.LayerNorm, LocalResponseNorm)
BY_RECORD = (nn.Linear, *CONVOLUTIONS, *ACTIVATIONS, *POOLING, *AVERAGES, *SHAPES, *NORMS)


def separable(network: nn.Module) -> int:
    """Return how many leading layers of a network are known to treat every record by itself.

    None when there is no convolution among them: dense layers gain nothing from chunks.
    """
    if type(network) is not nn.Sequential:
        return 0  # a subclass may call its layers in another way
    layers = list(network.children())
    count = next((i for i, layer in enumerate(layers) if type(layer) not in BY_RECORD), len(layers))
    return count if any(isinstance(layer, CONVOLUTIONS) for layer in layers[:count]) else 0


def forward(network: nn.Module, x: Tensor, rows: int = ROWS) -> Tensor:
    """Return network(x), equal up to rounding, its leading layers in chunks of the batch on a CPU."""
    count = separable(network) if x.device.type == "cpu" and len(x) > rows else 0
    if not count:
        outputs: Tensor = network(x)
        return outputs
    assert isinstance(network, nn.Sequential)
    leading, rest = network[:count], network[count:]
    joined: Tensor = rest(torch.cat([leading(part) for part in torch.split(x, rows)]))
    return joined
