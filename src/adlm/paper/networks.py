"""The paper's networks: layers bounded to [0, 1] (line 15, Eq. 22), sizes, networks by name, and their loss.

The sizes that sensitivities depend on are counted by running a network on a probe, so that pooling, cropping
and other operations between layers are counted too. A first layer whose neurons cannot be counted is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
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


# ---- Networks by name: the paper's, its authors', and other kinds. Any of them, or any module, can be
# trained.
#
# Auto-encoder, restricted Boltzmann machine and deep belief network learn records before labels. Their
# first stage reads released records alone, so a release without labels, which costs no eps3, is enough.
# With labels, `fit` runs the first stage and then trains the whole network by the released polynomial loss,
# as any other.
#
# The steps of a sequence (`places`) are the rows of an image, or the numbers of a flat record. The first
# affine transformation, which Delta_h0 counts, is that of every gate at every step for the recurrent
# network, and the embedding of every step for the one with attention. Relevance propagation does not
# support these two.

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


# ---- The polynomial loss: coefficients (Eqs. 24-25, lines 16-19 and 26-27), Delta_F (Lemma 5), error (Lemma
# 7). For output l of record i with logit z, the loss is phi0 + phi1 z + phi2 z^2, where each coefficient is a
# constant plus a slope times the label y_il in {0, 1}. The curator perturbs the coefficients; training sums
# the polynomial with the released ones.


@dataclass(frozen=True)
class Polynomial:
    """A loss of one output as coefficients of orders 0, 1, 2: phi^(R) = constant[R] + slope[R] * y.

    Attributes
    ----------
    name : `cross-entropy` or `square`.
    constant, slope : three numbers each, one an order.
    """

    name: str
    constant: tuple[float, float, float]
    slope: tuple[int, int, int]

    def label_sensitivity(self, orders: tuple[int, ...]) -> int:
        """L1 change of the coefficients of these orders when a record's label changes.

        One output loses its label and another one gains it, so two coefficients of each order change by the
        slope.
        """
        return 2 * sum(abs(self.slope[order]) for order in orders)

    def informative(self) -> tuple[int, ...]:
        """The orders that move the minimiser and depend on the label."""
        return tuple(order for order in (1, 2) if self.slope[order])

    def delta_f(self, classes: int, hidden: int) -> Fraction:
        """Delta_F of Lemma 5, for ``classes`` outputs on ``hidden`` neurons bounded to [0, 1].

        2 max over records of the L1 norm of the coefficients of orders 1 and 2 with the hidden state inside:
        M(|h| + |h|^2 / 4) for the cross-entropy.
        """
        if classes < 2 or hidden < 1:
            raise UserError(
                f"Delta_F needs at least 2 classes and 1 hidden neuron (got {classes} and {hidden})."
            )
        first = Fraction(max(abs(self.constant[1]), abs(self.constant[1] + self.slope[1])))
        second = Fraction(max(abs(self.constant[2]), abs(self.constant[2] + self.slope[2])))
        return 2 * classes * (first * hidden + second * hidden**2)


# log(1 + e^-z) for y = 1 and log(1 + e^z) for y = 0, around z = 0.
CROSS_ENTROPY = Polynomial("cross-entropy", (math.log(2), 0.5, 0.125), (0, -1, 0))
# (y - z)^2, exactly.
SQUARE = Polynomial("square", (0.0, 0.0, 1.0), (1, -2, 0))

POLYNOMIALS = {polynomial.name: polynomial for polynomial in (CROSS_ENTROPY, SQUARE)}


def by_name(name: str) -> Polynomial:
    """The polynomial of that name."""
    if name not in POLYNOMIALS:
        raise UserError(f"loss must be one of {', '.join(POLYNOMIALS)} (got {name!r}).")
    return POLYNOMIALS[name]


def error_bound_paper(classes: int) -> float:
    """The bound of the paper's Lemma 7 on the average error, M (e^2 + 2e - 1) / (e (1 + e)^2), logits in
    [-1, 1].

    Appendix F misprints the third derivatives and drops the remainder's 1/6, so the bound is loose.
    """
    e = math.e
    return classes * (e * e + 2 * e - 1) / (e * (1 + e) ** 2)


def error_bound_remainder(classes: int, radius: float = 1.0) -> float:
    """The same argument with the correct derivative and the 1/6, for logits in [-radius, radius].

    The third derivative of log(1 + e^-z) is s(1-s)(1-2s) up to sign, s the logistic of z, at most 1/(6 sqrt
    3) in size; the remainder then spans at most 2 radius^3 / (6 * 6 sqrt 3) for each output.
    """
    return classes * radius**3 / (18 * math.sqrt(3))


def error_bound_tight(classes: int, radius: float = 1.0) -> float:
    """The smallest such bound, attained at logits of size ``radius``.

    log(1 + e^-z) + z/2 = log(2 cosh(z/2)) is even, so the remainder is log cosh(z/2) - z^2/8: never
    positive, and largest in size at the ends. Its span is what bounds the loss of the minimiser.
    """
    return classes * (radius**2 / 8 - math.log(math.cosh(radius / 2)))


@dataclass(frozen=True)
class Coefficients:
    """phi^(0..2) of n records and M outputs.

    Attributes
    ----------
    zeroth, first, second : (n, M), or (1, 1) where an order is a public constant.
    raised : number of second-order coefficients that were raised to the floor.
    """

    zeroth: Tensor
    first: Tensor
    second: Tensor
    raised: int = 0

    def take(self, rows: Tensor) -> Coefficients:
        """The coefficients of some records."""
        zeroth, first, second = (
            t if len(t) == 1 else t[rows] for t in (self.zeroth, self.first, self.second)
        )
        return Coefficients(zeroth, first, second)

    def to(self, device: torch.device) -> Coefficients:
        """The same on another device."""
        return Coefficients(
            self.zeroth.to(device), self.first.to(device), self.second.to(device), self.raised
        )


def coefficients(polynomial: Polynomial, labels: Tensor, classes: int) -> Coefficients:
    """Noise-free coefficients of labels (n,) in 0..M-1: for data without privacy, and for tests."""
    y = F.one_hot(labels, classes).float()
    zeroth, first, second = (
        c + slope * y for c, slope in zip(polynomial.constant, polynomial.slope, strict=True)
    )
    return Coefficients(zeroth, first, second)


def released(polynomial: Polynomial, phi: Tensor, floor: float | None = None) -> Coefficients:
    """Coefficients of a record release, with the loss bounded below.

    Parameters
    ----------
    phi : (n, M) noisy first order (economical: orders 0 and 2 are public constants), or (n, 3, M) all three
        (literal).
    floor : least second-order coefficient, positive; by default the noise-free one.

    Notes
    -----
    Noise makes a second-order coefficient negative about half of the time when its scale is large, and a
    record whose parabola opens downwards makes the loss unbounded below. The noise-free coefficient is
    public, so every released one below it is raised to it: each parabola then opens upwards at least as
    steeply as without noise, and the loss of a record is at least phi0 - phi1^2 / (4 floor). This reads the
    release alone and costs nothing.
    """
    least = polynomial.constant[2] if floor is None else floor
    if least <= 0:
        raise UserError(f"floor must be positive, or the loss stays unbounded below (got {least}).")
    if phi.dim() == 2:
        constant = [phi.new_tensor([[value]]) for value in polynomial.constant]
        return Coefficients(constant[0], phi, constant[2].clamp_min(least))
    if phi.dim() != 3 or phi.shape[1] != 3:
        raise UserError(f"coefficients must have shape (n, M) or (n, 3, M) (got {tuple(phi.shape)}).")
    low = phi[:, 2] < least
    return Coefficients(phi[:, 0], phi[:, 1], phi[:, 2].clamp_min(least), int(low.sum()))


def loss(logits: Tensor, phi: Coefficients) -> Tensor:
    """Mean over records of sum over outputs of phi0 + phi1 z + phi2 z^2, for logits (n, M)."""
    terms = phi.zeroth + phi.first * logits + phi.second * logits.square()
    return terms.sum(1).mean()


def exact_loss(polynomial: Polynomial, logits: Tensor, labels: Tensor) -> Tensor:
    """The loss that the polynomial approximates: logistic cross-entropy (Eq. 24) or square error."""
    y = F.one_hot(labels, logits.shape[1]).to(logits)
    if polynomial.name == "square":
        return (y - logits).square().sum(1).mean()
    per_output = F.binary_cross_entropy_with_logits(logits, y, reduction="none")
    return per_output.sum(1).mean()
