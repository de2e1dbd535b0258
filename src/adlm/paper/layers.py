"""Layers of the paper's networks: bounded to [0, 1] (line 15, Eq. 22), the head, and the private layer h0.

The sizes that sensitivities depend on are counted by running a network on a probe, so that pooling, cropping
and other operations between layers are counted too. A first layer whose neurons cannot be counted is refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from adlm.errors import UserError

TOGETHER = 100  # fewer records than this are normalised by the moving averages of training
_BLOCK = 1 << 18  # numbers in a block: it stays in a core's cache between steps


class _BoundedResponse(torch.autograd.Function):
    """min(1, h (q + alpha sum h_m^2)^-beta) of rows of maps, with a hand-written derivative.

    That is h / max(h, (q + alpha sum h_m^2)^beta). The sum over neighbouring maps is a product with a band
    matrix, and rows are processed in blocks that stay in the cache.
    """

    @staticmethod
    def forward(ctx: Any, h: Tensor, band: Tensor, q: float, alpha: float, beta: float) -> Tensor:
        offset = h.new_tensor([q])
        bounded, inner, factor = torch.empty_like(h), torch.empty_like(h), torch.empty_like(h)
        for rows in _blocks(h):
            part, around, scale, result = (t[rows] for t in (h, inner, factor, bounded))
            torch.addmm(offset, torch.mul(part, part, out=result), band, alpha=alpha, out=around)
            _inverse_power(around, beta, scale)
            torch.mul(part, scale, out=result).clamp_(max=1)
        ctx.save_for_backward(h, band, inner, factor, bounded)
        ctx.slope = -2 * alpha * beta
        return bounded

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> tuple[Tensor, None, None, None, None]:
        h, band, inner, factor, bounded = ctx.saved_tensors
        gradient = torch.empty_like(h)
        for rows in _blocks(h):
            # Where h is the max the result is 1, a constant.
            direct = torch.ops.aten.hardtanh_backward(upstream[0][rows], bounded[rows], -math.inf, 1.0)
            around = (direct * bounded[rows]).div_(inner[rows]) @ band
            torch.mul(direct, factor[rows], out=gradient[rows]).addcmul_(h[rows], around, value=ctx.slope)
        return gradient, None, None, None, None


def _blocks(h: Tensor) -> Iterator[slice]:
    """Rows of (n, maps) in blocks that fit a cache; all at once on an accelerator."""
    rows = max(1, _BLOCK // h.shape[1]) if h.device.type == "cpu" else max(1, len(h))
    return (slice(start, start + rows) for start in range(0, len(h), rows))


def _inverse_power(t: Tensor, beta: float, out: Tensor) -> Tensor:
    """t^-beta; three quarters are two square roots, which are much faster."""
    if beta != 0.75:
        return torch.pow(t, -beta, out=out)
    root = torch.rsqrt(t)
    return torch.sqrt(root, out=out).mul_(root)


class LocalResponseNorm(nn.Module):
    """The paper's normalisation of convolutional layers: h / max(h, (q + alpha sum h_m^2)^beta).

    The sum runs over the l feature maps around each map, at the same place. The max keeps the result of a
    non-negative h within [0, 1], which torch's layer of this name does not.
    """

    lrp_pass_through = True

    def __init__(self, q: float = 2.0, l: int = 5, alpha: float = 1e-4, beta: float = 0.75) -> None:  # noqa: E741
        super().__init__()
        if l < 1 or q <= 0:
            raise UserError(f"l must be at least 1 feature map and q positive (got {l} and {q}).")
        self.q, self.l, self.alpha, self.beta = q, l, alpha, beta

    def forward(self, h: Tensor) -> Tensor:
        """Normalise (n, maps, *places)."""
        place = torch.arange(h.shape[1], device=h.device)
        band = ((place[:, None] - place).abs() <= self.l // 2).to(h)
        last = h.movedim(1, -1)  # no copy if memory is already channels last
        rows = last.reshape(-1, h.shape[1])
        if self.training:
            bounded: Tensor = _BoundedResponse.apply(rows, band, self.q, self.alpha, self.beta)  # type: ignore[no-untyped-call]
        else:
            outer = (self.q + self.alpha * (rows.square() @ band)).pow(self.beta)
            bounded = rows / torch.maximum(rows, outer)
        return bounded.view(last.shape).movedim(-1, 1)

    def extra_repr(self) -> str:
        return f"q={self.q}, l={self.l}, alpha={self.alpha}, beta={self.beta}"


class BatchStatistics(nn.Module):
    """A layer that uses batch statistics in training and keeps moving averages of them.

    In evaluation it uses the averages, so that the output for a record depends on that record alone. If it
    was trained on noisy records, clean ones fall into a narrow band of these averages and are hard to
    distinguish; `by_batch` lets such a layer use the statistics of the batch instead.

    Batch statistics couple records. On a release that is harmless. On private records a network must be in
    evaluation mode and outside of `by_batch`, as relevance propagation ensures.
    """

    lrp_pass_through = True
    seen: Tensor

    def __init__(self, momentum: float) -> None:
        super().__init__()
        self.momentum, self.by_batch = momentum, False
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def _of_batch(self) -> bool:
        return self.training or self.by_batch

    @torch.no_grad()
    def _keep(self, *pairs: tuple[Tensor, Tensor]) -> None:
        """Update moving averages with the statistics of a batch."""
        if self.training:
            step = 1.0 if self.seen == 0 else self.momentum
            for average, current in pairs:
                average.lerp_(current.detach(), step)
            self.seen += 1


class MinMax(BatchStatistics):
    """The paper's normalisation of dense layers: (h - chi) / (phi - chi), per neuron over the batch.

    chi and phi are the least and largest value of each neuron in the batch, or moving averages of them.
    Outside them the result is clipped to [0, 1].
    """

    low: Tensor
    high: Tensor

    def __init__(self, width: int, momentum: float = 0.1, floor: float = 1e-6) -> None:
        super().__init__(momentum)
        self.floor = floor
        self.register_buffer("low", torch.zeros(width))
        self.register_buffer("high", torch.ones(width))

    def forward(self, h: Tensor) -> Tensor:
        """Normalise (n, width)."""
        low, high = self.low, self.high
        if self._of_batch():
            low, high = h.amin(0), h.amax(0)
            self._keep((self.low, low), (self.high, high))
        return ((h - low) / (high - low).clamp_min(self.floor)).clamp(0, 1)


class Standardise(BatchStatistics):
    """Batch normalisation with a learnt scale and shift, as in the dense layer of the authors' code."""

    mean: Tensor
    variance: Tensor

    def __init__(self, width: int, momentum: float = 0.1, floor: float = 1e-3) -> None:
        super().__init__(momentum)
        self.floor = floor
        self.scale, self.shift = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("variance", torch.ones(width))

    def forward(self, h: Tensor) -> Tensor:
        """Normalise (n, width)."""
        mean, variance = self.mean, self.variance
        if self._of_batch():
            mean, variance = h.mean(0), h.var(0, correction=0)
            self._keep((self.mean, mean), (self.variance, variance))
        return (h - mean) * (self.scale * (variance + self.floor).rsqrt()) + self.shift


def even_parts(n: int, most: int) -> list[slice]:
    """0..n in parts of nearly equal size, at most `most`, so that no part is too small for statistics."""
    parts = max(1, -(-n // most))
    return [slice(n * i // parts, n * (i + 1) // parts) for i in range(parts)]


@contextmanager
def by_batch(network: nn.Module, wanted: bool = True) -> Iterator[None]:
    """Let a network use the statistics of each batch inside this context.

    This includes torch's batch normalisation. Statistics are reliable from `TOGETHER` records on.
    """
    layers = list(network.modules()) if wanted else []
    bounded = [layer for layer in layers if isinstance(layer, BatchStatistics)]
    others = [layer for layer in layers if isinstance(layer, _BatchNorm)]
    statistics = [(layer.running_mean, layer.running_var) for layer in others]
    for bounded_layer in bounded:
        bounded_layer.by_batch = True
    for layer in others:
        layer.running_mean = layer.running_var = None
    try:
        yield
    finally:
        for bounded_layer in bounded:
            bounded_layer.by_batch = False
        for layer, (mean, variance) in zip(others, statistics, strict=True):
            layer.running_mean, layer.running_var = mean, variance


def bounded_head(width: int, hidden: int, classes: int) -> nn.Sequential:
    """A dense layer normalised to [0, 1], and the output layer h W^T; Eq. 23 has no bias there."""
    output = nn.Linear(hidden, classes, bias=False)
    return nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), MinMax(hidden), output)


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
    except (RuntimeError, ValueError, IndexError) as problem:
        first = str(problem).strip().partition("\n")[0]
        raise UserError(
            f"the network does not take records of shape {shape}, in batches (n, "
            f"{', '.join(map(str, shape))}): {first}"
        ) from None
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
