"""What Algorithm 1 asks of any network: how large its first layer h0 and its last hidden layer are."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from adlm.errors import UserError

_AFFINE = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
_BIAS_INPUT = "bias_input"
_POOLS = (nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d)


@dataclass(frozen=True)
class Anatomy:
    """Sizes that the sensitivities of Algorithm 1 are counted from.

    Attributes
    ----------
    features : d, numbers in a record.
    neurons : |h0|, outputs of the first affine layer for one record.
    patch : inputs of one neuron of that layer.
    places : neurons of one of its feature maps after the pooling that follows it; 1 for a dense layer.
    hidden : |h_(k)|, neurons of the last hidden layer.
    """

    features: int
    neurons: int
    patch: int
    places: int
    hidden: int

    @property
    def counted(self) -> int:
        """Delta_h0 = 2 sum over h0 of d (Lemma 3)."""
        return 2 * self.neurons * self.features

    @property
    def per_patch(self) -> int:
        """Delta_h0 as the authors' code counts it: 2 places patch, 9,800 for the paper's MNIST network."""
        return 2 * self.places * self.patch


def anatomy(network: nn.Module, shape: tuple[int, ...]) -> Anatomy:
    """Count the first and the last layer of any network for records of ``shape``."""
    met = _met(network, shape)
    affine = [i for i, (layer, _) in enumerate(met) if isinstance(layer, _AFFINE)]
    layer, output = met[affine[0]]
    end = affine[1] if len(affine) > 1 else len(met)
    pooled = met[end - 1][1]
    return Anatomy(
        features=math.prod(shape),
        neurons=output[0].numel(),
        patch=layer.get_parameter("weight")[0].numel(),
        places=1 if isinstance(layer, nn.Linear) else math.prod(pooled.shape[2:]),
        hidden=met[affine[-1]][0].get_parameter("weight")[0].numel(),
    )


def perturb_bias(network: nn.Module, shape: tuple[int, ...], bias: float) -> None:
    """Let the first layer's biases grow on the released bias input (line 14), in place.

    With the static bias as input 0, the layer computes b W_b beside x W (proof of Lemma 4). The product is
    what is trained: W_b is multiplied by the released b once, before training, so a large b does not
    inflate the steps. The layer remembers b: trained on the same release again it goes on from where it is,
    and on another release its W_b meets that release's b instead. Weights that are set anew in the same
    module are taken for trained ones, so build a new module for a new start.
    """
    first = next(layer for layer, _ in _met(network, shape) if isinstance(layer, _AFFINE))
    if first.bias is not None:
        with torch.no_grad():
            first.bias.mul_(bias / (getattr(first, _BIAS_INPUT, 1.0) or 1.0))
        object.__setattr__(first, _BIAS_INPUT, bias)  # a plain attribute: no part of the network's state


def _met(network: nn.Module, shape: tuple[int, ...]) -> list[tuple[nn.Module, Tensor]]:
    """Affine and pooling layers in the order a blank record meets them, with their outputs."""
    met: list[tuple[nn.Module, Tensor]] = []

    def note(layer: nn.Module, _: object, output: Tensor) -> None:
        met.append((layer, output))

    layers = [layer for layer in network.modules() if isinstance(layer, _AFFINE + _POOLS)]
    hooks = [layer.register_forward_hook(note) for layer in layers]
    was_training = network.training
    try:
        with torch.no_grad():
            network.eval()(torch.zeros(1, *shape, device=next(network.parameters()).device))
    finally:
        network.train(was_training)
        for hook in hooks:
            hook.remove()
    if not any(isinstance(layer, _AFFINE) for layer, _ in met):
        raise UserError(
            "the network has no linear or convolutional layer, so it has no first layer to perturb."
        )
    return met
