"""Sizes of a network's first layer h0 and last hidden layer, for Algorithm 1.

Layers are counted by running the network on a probe, so that pooling, cropping and other operations between
layers are counted too. A first layer whose neurons cannot be counted
is refused.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from adlm.analyst.normalisation import BatchStatistics
from adlm.errors import UserError

_AFFINE = (nn.Linear, _ConvNd)
_GATES = {nn.LSTM: 4, nn.GRU: 3, nn.RNN: 1}  # affine transformations of an input for each hidden unit
_COUNTED = (*_AFFINE, nn.RNNBase, nn.MultiheadAttention)
_NO_LAYER = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.PReLU, BatchStatistics)
_BIAS_INPUT = "bias_input"


@dataclass(frozen=True)
class LayerSizes:
    """Sizes that the sensitivities of Algorithm 1 are counted from.

    Attributes
    ----------
    features : d, numbers in a record.
    neurons : |h0|, outputs of the first affine transformation for one record.
    patch : largest number of inputs of one of its neurons.
    map_size : neurons of one of its feature maps; 1 for a dense layer, the steps of a recurrent one.
    places : neurons of one of its feature maps as inputs of the next layer, after pooling; None where the
        next layer's inputs are not whole maps.
    hidden : |h_(k)|, neurons of the last hidden layer.
    outputs : numbers in the network's output for a record.
    """

    features: int
    neurons: int
    patch: int
    map_size: int
    places: int | None
    hidden: int
    outputs: int

    @property
    def counted(self) -> int:
        """Delta_h0 = 2 sum over h0 of d (Lemma 3)."""
        return 2 * self.neurons * self.features

    @property
    def per_patch(self) -> int:
        """Delta_h0 as the authors' code counts it: 2 places patch.

        9,800 for their MNIST network, which the paper's text agrees with; 5,400 for their CIFAR-10 network,
        which crops images to 20 by 20 and has stride 2 (`authors-cifar10`). On a network of the text's own
        sizes, `paper-cifar10`, the same count gives 13,824.
        """
        if self.places is None:
            raise UserError(
                "delta_h0 cannot be counted per patch: between the first two layers of this network its "
                "feature maps are not kept separate; choose counted, or give a number"
            )
        return 2 * self.places * self.patch


@dataclass(frozen=True)
class _LayerCall:
    """A layer with weights in the probe's pass, with its input and output."""

    layer: nn.Module
    inputs: Tensor
    output: Tensor


def layer_sizes(network: nn.Module, shape: tuple[int, ...]) -> LayerSizes:
    """Count the first and the last layer of any network for records of ``shape``."""
    calls, answer = _run(network, shape)
    first, last = calls[0], calls[-1]
    neurons, maps = _neurons(first)
    return LayerSizes(
        features=math.prod(shape),
        neurons=neurons,
        patch=_patch(first),
        map_size=neurons // maps,
        places=_places(calls, neurons, maps),
        hidden=_patch(last),
        outputs=answer[0].numel(),
    )


def perturb_bias(network: nn.Module, shape: tuple[int, ...], bias: float) -> None:
    """Multiply the first layer's biases by the released bias input (line 14), in place.

    With the static bias as input 0, the layer computes b W_b + x W (proof of Lemma 4). The product b W_b is
    trained: W_b is multiplied by the released b once, before training, so a large b does not inflate the
    steps. The layer stores b. Trained again on the same release, it continues from its weights; on another
    release, b is exchanged. Weights that are reset in the same module count as trained ones, so build a new
    module to start again.
    """
    first = _run(network, shape)[0][0].layer
    biases = [
        parameter
        for name, parameter in first.named_parameters(recurse=False)
        # in a stack of recurrent layers only the lowest reads the record
        if "bias" in name and (not isinstance(first, nn.RNNBase) or "_l0" in name)
    ]
    with torch.no_grad():
        for parameter in biases:
            parameter.mul_(bias / (getattr(first, _BIAS_INPUT, 1.0) or 1.0))
    if biases:
        object.__setattr__(first, _BIAS_INPUT, bias)  # a plain attribute, not in the state dict


def _neurons(call: _LayerCall) -> tuple[int, int]:
    """Outputs of a layer's affine transformation for one record, and their number of maps."""
    layer, output = call.layer, call.output
    if isinstance(layer, nn.RNNBase):
        gates = next(count for kind, count in _GATES.items() if isinstance(layer, kind))
        maps = gates * layer.hidden_size * (2 if layer.bidirectional else 1)
        return maps * (call.inputs[0].numel() // layer.input_size), maps
    if isinstance(layer, nn.MultiheadAttention):  # queries, keys and values of every place
        maps = 3 * layer.embed_dim
        return maps * (call.inputs[0].numel() // layer.embed_dim), maps
    maps = layer.out_features if isinstance(layer, nn.Linear) else output.shape[1]
    return output[0].numel(), maps


def _patch(call: _LayerCall) -> int:
    """The most inputs that a neuron of a layer has."""
    layer = call.layer
    if isinstance(layer, nn.RNNBase):
        return layer.input_size
    if isinstance(layer, nn.MultiheadAttention):
        return int(layer.embed_dim)
    if isinstance(layer, _ConvTransposeNd):  # the inputs of an output depend on the stride
        weights = {name: parameter.detach().clone() for name, parameter in layer.named_parameters()}
        with torch.no_grad():
            for name, parameter in layer.named_parameters():
                parameter.fill_(0.0 if name == "bias" else 1.0)
            inputs = round(float(layer.forward(torch.ones_like(call.inputs)).max()))
            for name, parameter in layer.named_parameters():
                parameter.copy_(weights[name])
        return inputs
    return layer.get_parameter("weight")[0].numel()


def _places(calls: list[_LayerCall], neurons: int, maps: int) -> int | None:
    """Neurons of a map of the first layer, as inputs of the next layer."""
    if isinstance(calls[0].layer, nn.Linear) or len(calls) == 1:
        return neurons // maps
    meets = calls[1].inputs[0].numel()
    channels = calls[0].output.shape[1] if isinstance(calls[0].layer, _ConvNd) else calls[0].output.shape[-1]
    return None if meets % channels else meets // channels


def _run(network: nn.Module, shape: tuple[int, ...]) -> tuple[list[_LayerCall], Tensor]:
    """Layers with weights in the order of a blank record's pass, and the network's output."""
    calls: list[_LayerCall] = []

    def note(layer: nn.Module, inputs: Any, output: Any) -> None:
        calls.append(_LayerCall(layer, inputs[0], output[0] if isinstance(output, tuple) else output))

    layers = [
        layer
        for layer in network.modules()
        if isinstance(layer, _COUNTED)
        or (not any(True for _ in layer.children()) and any(True for _ in layer.parameters()))
    ]
    layers = [layer for layer in layers if not isinstance(layer, _NO_LAYER)]
    hooks = [layer.register_forward_hook(note) for layer in layers]
    was_training = network.training
    was_fast = torch.backends.mha.get_fastpath_enabled()
    try:
        torch.backends.mha.set_fastpath_enabled(False)  # the fast path skips a transformer's inner layers
        with torch.no_grad():
            device = next((p.device for p in network.parameters()), torch.device("cpu"))
            answer: Tensor = network.eval()(torch.zeros(1, *shape, device=device))
    finally:
        torch.backends.mha.set_fastpath_enabled(was_fast)
        network.train(was_training)
        for hook in hooks:
            hook.remove()
    inside = {
        id(child) for m in calls if isinstance(m.layer, nn.MultiheadAttention) for child in m.layer.modules()
    }
    calls = [m for m in calls if isinstance(m.layer, nn.MultiheadAttention) or id(m.layer) not in inside]
    if not any(isinstance(m.layer, _COUNTED) for m in calls):
        raise UserError(
            "the network has no linear or convolutional layer, so it has no first layer to perturb."
        )
    if not isinstance(calls[0].layer, _COUNTED):
        raise UserError(
            f"the network's first layer with weights is {type(calls[0].layer).__name__}, whose neurons "
            "cannot be counted for Delta_h0; let a linear, convolutional, recurrent or attention layer come "
            "first"
        )
    counted = [m for m in calls if isinstance(m.layer, _COUNTED)]
    return counted, answer
