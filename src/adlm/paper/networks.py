"""The paper's networks: layers bounded to [0, 1] (line 15, Eq. 22), sizes, and networks by name.

The sizes that sensitivities depend on are counted by running a network on a probe, so that pooling, cropping
and other operations between layers are counted too. A first layer whose neurons cannot be counted is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from adlm.errors import UserError

# ---- Normalisation layers (line 15)

TOGETHER = 100  # fewer records than this are normalised by the moving averages of training
_BLOCK = 1 << 18  # numbers in a block: it stays in a core's cache between steps


class _BoundedResponse(torch.autograd.Function):
    """min(1, h (q + alpha sum h_m^2)^-beta) of rows of maps, with a hand-written derivative.

    That is h / max(h, (q + alpha sum h_m^2)^beta). The sum over neighbouring maps is a product with a band
    matrix, and rows are processed in blocks that stay in the cache: twice as fast as autograd.
    """

    @staticmethod
    def forward(ctx: Any, h: Tensor, band: Tensor, q: float, alpha: float, beta: float) -> Tensor:
        offset = h.new_tensor([q])
        bounded, inner, factor = torch.empty_like(h), torch.empty_like(h), torch.empty_like(h)
        for rows in _blocks(h):
            part, around, scale, result = (t[rows] for t in (h, inner, factor, bounded))
            torch.addmm(offset, torch.mul(part, part, out=result), band, alpha=alpha, out=around)
            if beta == 0.75:  # two square roots, which are much faster
                root = torch.rsqrt(around)
                torch.sqrt(root, out=scale).mul_(root)
            else:
                torch.pow(around, -beta, out=scale)
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


class LocalResponseNorm(nn.Module):
    """The paper's normalisation of convolutional layers (Eq. 22): h / max(h, (q + alpha sum h_m^2)^beta).

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


class MinMax(nn.Module):
    """The paper's normalisation of dense layers: (h - chi) / (phi - chi), per neuron over the batch.

    chi and phi are the least and largest value of each neuron in the batch; in evaluation, moving averages
    of them, so that the output for a record depends on that record alone. Outside them the result is clipped
    to [0, 1]. Batch statistics couple records. On a release that is harmless. On private records a network
    must be in evaluation mode and outside of `by_batch`, as relevance propagation ensures.
    """

    lrp_pass_through = True
    low: Tensor | None
    high: Tensor | None
    seen: Tensor

    def __init__(self, width: int, momentum: float = 0.1, floor: float = 1e-6) -> None:
        super().__init__()
        self.momentum, self.floor = momentum, floor
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("low", torch.zeros(width))
        self.register_buffer("high", torch.ones(width))

    def forward(self, h: Tensor) -> Tensor:
        """Normalise (n, width)."""
        low, high = self.low, self.high
        if self.training or low is None or high is None:
            low, high = h.amin(0), h.amax(0)
        if self.training and self.low is not None and self.high is not None:
            step = 1.0 if self.seen == 0 else self.momentum
            self.low.lerp_(low.detach(), step)
            self.high.lerp_(high.detach(), step)
            self.seen += 1
        return ((h - low) / (high - low).clamp_min(self.floor)).clamp(0, 1)


@contextmanager
def by_batch(network: nn.Module, wanted: bool = True) -> Iterator[None]:
    """Let a network normalise by the statistics of each batch, not by moving averages, inside this context.

    Clean records fall into a narrow band of averages over noisy ones, and are hard to distinguish there.
    Statistics are reliable from `TOGETHER` records on.
    """
    kept: list[tuple[nn.Module, str, Any]] = []
    for layer in network.modules() if wanted else ():
        names = ("low", "high") if isinstance(layer, MinMax) else ()
        names = ("running_mean", "running_var") if isinstance(layer, _BatchNorm) else names
        kept += [(layer, name, getattr(layer, name)) for name in names]
    try:
        for layer, name, _ in kept:
            setattr(layer, name, None)
        yield
    finally:
        for layer, name, averages in kept:
            setattr(layer, name, averages)


# ---- Sizes of layers (lines 9 and 17), and the bias of the first (line 14)

_GATES = {nn.LSTM: 4, nn.GRU: 3, nn.RNN: 1}  # affine transformations of an input for each hidden unit
_COUNTED = (nn.Linear, _ConvNd, nn.RNNBase, nn.MultiheadAttention)
_NO_LAYER = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.PReLU, MinMax)
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

    @property
    def maps(self) -> int:
        """Number of feature maps: of gates at every step, of queries, keys and values at every place."""
        layer = self.layer
        if isinstance(layer, nn.RNNBase):
            gates = next(count for kind, count in _GATES.items() if isinstance(layer, kind))
            return gates * layer.hidden_size * (2 if layer.bidirectional else 1)
        if isinstance(layer, nn.MultiheadAttention):
            return 3 * int(layer.embed_dim)
        return layer.out_features if isinstance(layer, nn.Linear) else self.output.shape[1]

    @property
    def patch(self) -> int:
        """The most inputs that a neuron has."""
        if isinstance(self.layer, nn.RNNBase):
            return self.layer.input_size
        if isinstance(self.layer, nn.MultiheadAttention):
            return int(self.layer.embed_dim)
        return self.layer.get_parameter("weight")[0].numel()

    @property
    def neurons(self) -> int:
        """Outputs of the affine transformation for one record."""
        if isinstance(self.layer, nn.RNNBase | nn.MultiheadAttention):
            return self.maps * (self.inputs[0].numel() // self.patch)
        return self.output[0].numel()

    def places(self, following: _LayerCall | None) -> int | None:
        """Neurons of a map, as inputs of the following layer."""
        if isinstance(self.layer, nn.Linear) or following is None:
            return self.neurons // self.maps
        channels = self.output.shape[1 if isinstance(self.layer, _ConvNd) else -1]
        meets = following.inputs[0].numel()
        return None if meets % channels else meets // channels


def layer_sizes(network: nn.Module, shape: tuple[int, ...]) -> LayerSizes:
    """Count the first and the last layer of any network for records of ``shape``."""
    calls, answer = _run(network, shape)
    first = calls[0]
    return LayerSizes(
        features=math.prod(shape),
        neurons=first.neurons,
        patch=first.patch,
        map_size=first.neurons // first.maps,
        places=first.places(calls[1] if len(calls) > 1 else None),
        hidden=calls[-1].patch,
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


def _run(network: nn.Module, shape: tuple[int, ...]) -> tuple[list[_LayerCall], Tensor]:
    """Layers that can be counted in the order of a blank record's pass, and the network's output."""
    calls: list[_LayerCall] = []

    def note(layer: nn.Module, inputs: Any, output: Any) -> None:
        calls.append(_LayerCall(layer, inputs[0], output[0] if isinstance(output, tuple) else output))

    attention = [m for m in network.modules() if isinstance(m, nn.MultiheadAttention)]
    inside = {id(part) for m in attention for part in m.modules()} - {id(m) for m in attention}
    hooks = [
        layer.register_forward_hook(note)
        for layer in network.modules()
        if (isinstance(layer, _COUNTED) or (not list(layer.children()) and list(layer.parameters())))
        and not isinstance(layer, _NO_LAYER)
        and id(layer) not in inside
    ]
    was_training, was_fast = network.training, torch.backends.mha.get_fastpath_enabled()
    try:
        torch.backends.mha.set_fastpath_enabled(False)  # the fast path skips a transformer's inner layers
        with torch.no_grad():
            device = next((p.device for p in network.parameters()), torch.device("cpu"))
            answer: Tensor = network.eval()(torch.zeros(1, *shape, device=device))
    except (RuntimeError, ValueError, IndexError) as problem:
        raise UserError(
            f"the network does not take records of shape {shape}, in batches (n, "
            f"{', '.join(map(str, shape))}): {str(problem).strip().splitlines()[0]}"
        ) from None
    finally:
        torch.backends.mha.set_fastpath_enabled(was_fast)
        network.train(was_training)
        for hook in hooks:
            hook.remove()
    counted = [m for m in calls if isinstance(m.layer, _COUNTED)]
    if not counted:
        raise UserError(
            "the network has no linear or convolutional layer, so it has no first layer to perturb."
        )
    if calls[0] is not counted[0] or isinstance(calls[0].layer, _ConvTransposeNd):
        raise UserError(
            f"the network's first layer with weights is {type(calls[0].layer).__name__}, whose neurons "
            "cannot be counted for Delta_h0; let a linear, convolutional, recurrent or attention layer come "
            "first"
        )
    return counted, answer


# ---- Networks by name: the paper's, its authors', and other kinds. Any of them, or any module, can be
# trained.

Shape = tuple[int, ...]
Builder = Callable[[Shape, int], nn.Module]


def bounded_head(width: int, hidden: int, classes: int) -> nn.Sequential:
    """A dense layer normalised to [0, 1], and the output layer h W^T; Eq. 23 has no bias there."""
    output = nn.Linear(hidden, classes, bias=False)
    return nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), MinMax(hidden), output)


def _as_maps(shape: Shape, places: int) -> tuple[list[nn.Module], int]:
    """Layers that give records a channel axis where they have none, and the number of channels."""
    if len(shape) == places + 1:
        return [], shape[0]
    if len(shape) == places:
        return [nn.Unflatten(1, (1, shape[0]))], 1
    raise UserError(
        f"this network takes records of {places} or {places + 1} axes, got shape {shape}; choose mlp"
    )


def _width(layers: list[nn.Module], shape: Shape) -> int:
    """Output size of layers that end in a flat vector."""
    with torch.no_grad():
        return int(nn.Sequential(*layers).eval()(torch.zeros(1, *shape)).shape[1])


def _dense_head(layers: list[nn.Module], shape: Shape, hidden: int, classes: int) -> nn.Sequential:
    """The layers, flattened, with the bounded head on them."""
    width = _width([*layers, nn.Flatten()], shape)
    return nn.Sequential(*layers, nn.Flatten(), *bounded_head(width, hidden, classes))


def paper_cnn(
    shape: Shape, classes: int, maps: tuple[int, ...], patches: tuple[int, ...], hidden: int
) -> nn.Module:
    """Convolutions that keep the size, each with ReLU, LRN and pooling by two; then the bounded head."""
    layers, channels = _as_maps(shape, 2)
    for out, patch in zip(maps, patches, strict=True):
        layers += [nn.Conv2d(channels, out, patch, padding=patch // 2), nn.ReLU()]
        layers += [LocalResponseNorm(), nn.MaxPool2d(2, ceil_mode=True)]
        channels = out
    return _dense_head(layers, shape, hidden, classes)


def authors_mnist(shape: Shape, classes: int, maps: tuple[int, int] = (32, 64)) -> nn.Module:
    """The MNIST network as published by its authors: 32 and 64 maps and 25 neurons as in the text.

    Inputs are clipped to [-10, 10], there is no LRN, the dense layer has batch normalisation and a clip to
    [0, 1], and the output layer has a bias. Weights are drawn from a normal distribution of deviation 0.1
    truncated at twice that; biases are 0.1.
    """
    body, channels = _as_maps(shape, 2)
    body.append(nn.Hardtanh(-10, 10))
    for out in maps:  # pooling before ReLU gives the same as after it, at a quarter of the cost
        body += [nn.Conv2d(channels, out, 5, padding=2), nn.MaxPool2d(2, ceil_mode=True), nn.ReLU()]
        channels = out
    body.append(nn.Flatten())
    dense = [nn.Linear(_width(body, shape), 25), nn.BatchNorm1d(25, eps=1e-3), nn.Hardtanh(0, 1)]
    network = nn.Sequential(*body, *dense, nn.Linear(25, classes))
    for layer in network:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.trunc_normal_(layer.weight, std=0.1, a=-0.2, b=0.2)
            nn.init.constant_(layer.get_parameter("bias"), 0.1)
    return network


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
    dense = [nn.Linear(_width(body, shape), 30), nn.BatchNorm1d(30, eps=1e-3), nn.Hardtanh(-1, 1)]
    return nn.Sequential(*body, *dense, nn.Linear(30, classes))


def mlp(shape: Shape, classes: int) -> nn.Module:
    """Two dense layers of 128 and 25 on flattened records of any shape."""
    layers = [nn.Flatten(), nn.Linear(math.prod(shape), 128), nn.ReLU(), MinMax(128)]
    return _dense_head(layers, shape, 25, classes)


def cnn1d(shape: Shape, classes: int) -> nn.Module:
    """Two one-dimensional convolutions of 16 and 32 maps with patches of 5, for series and rows."""
    layers, maps = _as_maps(shape, 1)
    layers += [nn.Conv1d(maps, 16, 5, padding=2), nn.ReLU(), LocalResponseNorm()]
    layers += [nn.MaxPool1d(2, ceil_mode=True), nn.Conv1d(16, 32, 5, padding=2), nn.ReLU()]
    return _dense_head([*layers, LocalResponseNorm(), nn.AdaptiveAvgPool1d(4)], shape, 25, classes)


def places(shape: Shape) -> tuple[int, int]:
    """Number of steps of a record, and of numbers in each: rows of an image, else single numbers."""
    if not 1 <= len(shape) <= 3:
        raise UserError(f"this network takes records of one to three axes, got shape {shape}; choose mlp")
    if len(shape) == 1:
        return shape[0], 1
    return (shape[0], shape[1]) if len(shape) == 2 else (shape[1], shape[0] * shape[2])


class _ByPlace(nn.Module):
    """A network on sequences (n, places, numbers), which relevance propagation does not support."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape, (self.count, self.width) = shape, places(shape)

    def _series(self, x: Tensor) -> Tensor:
        rows = x.movedim(1, 2) if len(self.shape) == 3 else x
        return rows.reshape(len(x), self.count, self.width)


class Recurrent(_ByPlace):
    """An LSTM of 32 units; its last state, in [-1, 1], is the input of the bounded head."""

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__(shape)
        self.series = nn.LSTM(self.width, 32, batch_first=True)
        self.head = bounded_head(32, 25, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Give (n, classes) scores."""
        answer: Tensor = self.head(self.series(self._series(x))[0][:, -1])
        return answer


class Attention(_ByPlace):
    """Embeddings in 32 dimensions with learnt positions, one layer of attention, and mean pooling."""

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__(shape)
        self.embed = nn.Linear(self.width, 32)
        self.position = nn.Embedding(self.count, 32)
        self.encoder = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.head = bounded_head(32, 25, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Give (n, classes) scores."""
        embedded = self.embed(self._series(x))
        position = self.position(torch.arange(self.count, device=x.device))
        answer: Tensor = self.head(self.encoder(embedded + position).mean(1))
        return answer


# Auto-encoder, restricted Boltzmann machine and deep belief network learn records before labels. Their first
# stage reads released records alone, so a release without labels, which costs no eps3, is enough. With
# labels, `train` runs the first stage and then the whole network by the released polynomial loss.

EPOCHS, BATCH = 20, 100  # of learning records without labels
NEAR = (-1.0, 2.0)  # noisy values are clipped to this; a Boltzmann machine would diverge beyond it


def _batches(x: Tensor, seed: int, epochs: int) -> Iterator[Tensor]:
    """Records in random batches, epoch after epoch."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        for rows in torch.split(torch.randperm(len(x), generator=generator), BATCH):
            yield x[rows]


class Unsupervised(nn.Module):
    """A classifier whose lower layers can be trained on records alone, and can reconstruct them."""

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

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        self.shape, width = shape, math.prod(shape)
        self.encode = nn.Sequential(nn.Flatten(), nn.Linear(width, 64), nn.Sigmoid())
        self.decode = nn.Linear(64, width)
        self.head = bounded_head(64, 25, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Give (n, classes) scores."""
        answer: Tensor = self.head(self.encode(x))
        return answer

    def reconstruct(self, x: Tensor) -> Tensor:
        """Decode the code of (n, *shape) records."""
        flat: Tensor = self.decode(self.encode(x))
        return flat.view(-1, *self.shape)

    def learn_records(self, x: Tensor, *, seed: int = 0, epochs: int = EPOCHS) -> None:
        """Minimise the square error between a released record and its reconstruction."""
        optimiser = torch.optim.Adam([*self.encode.parameters(), *self.decode.parameters()], lr=3e-3)
        self.train()
        for part in _batches(x, seed, epochs):
            optimiser.zero_grad()
            F.mse_loss(self.reconstruct(part), part).backward()  # type: ignore[no-untyped-call]
            optimiser.step()


class Machine(nn.Module):
    """A restricted Boltzmann machine: Gaussian visible units, binary hidden ones, dense or convolutional."""

    def __init__(self, layer: nn.Linear | nn.Conv2d) -> None:
        super().__init__()
        self.layer = layer
        nn.init.normal_(layer.weight, std=0.01)
        if isinstance(layer, nn.Conv2d):  # sparse units, as in Lee et al. 2009
            nn.init.constant_(layer.get_parameter("bias"), -1.0)
            self.visible = nn.Parameter(torch.zeros(layer.in_channels, 1, 1))
        else:
            nn.init.zeros_(layer.bias)
            self.visible = nn.Parameter(torch.zeros(layer.in_features))

    def forward(self, v: Tensor) -> Tensor:
        """Probability of each hidden unit given (n, *shape) visible ones."""
        return torch.sigmoid(self.layer(v))

    def down(self, hidden: Tensor) -> Tensor:
        """Mean of the visible units given the hidden ones."""
        if isinstance(self.layer, nn.Linear):
            return hidden @ self.layer.weight + self.visible
        return F.conv_transpose2d(hidden, self.layer.weight, padding=self.layer.padding) + self.visible  # type: ignore[arg-type]

    def free_energy(self, v: Tensor) -> Tensor:
        """Sum over (n, *shape) visible units of their energy, hidden ones summed out, up to a constant."""
        return (v - self.visible).square().sum() / 2 - F.softplus(self.layer(v)).sum()

    def learn(self, x: Tensor, seed: int, epochs: int) -> None:
        """Contrastive divergence of one step (Hinton 2002); steps are means over records and places."""
        convolution = isinstance(self.layer, nn.Conv2d)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            self.visible.copy_(x.mean((0, 2, 3))[:, None, None] if convolution else x.mean(0))
        groups = [
            {"params": [self.layer.weight], "momentum": 0.9},
            {"params": [self.layer.bias, self.visible], "momentum": 0.0 if convolution else 0.9},
        ]
        optimiser = torch.optim.SGD(groups, lr=0.05)
        for v in _batches(x, seed, epochs):
            with torch.no_grad():
                hidden = self(v)
                back = self.down(torch.bernoulli(hidden, generator=generator))
            optimiser.zero_grad()
            size = hidden.numel() / hidden.shape[1]
            ((self.free_energy(v) - self.free_energy(back)) / size).backward()
            optimiser.step()


class Boltzmann(Unsupervised):
    """A Boltzmann machine of 64 units, or a stack, each trained on the output of the one below.

    Parameters
    ----------
    shape, classes : of a record, and the number of outputs.
    deep : a deep belief network of two convolutional machines of 8 and 16 maps, pooled by two.
    """

    def __init__(self, shape: Shape, classes: int, *, deep: bool = False) -> None:
        super().__init__()
        if deep and len(shape) not in (2, 3):
            raise UserError(f"the deep belief network takes images, got records of shape {shape}; choose rbm")
        self.shape = shape
        above: list[nn.Module] = []
        if deep:
            layers, maps = _as_maps(shape, 2)
            self.visible: nn.Module = nn.Sequential(*layers)
            convolutions = [Machine(nn.Conv2d(a, b, 5, padding=2)) for a, b in ((maps, 8), (8, 16))]
            self.machines = nn.ModuleList(convolutions)
            self.pool: nn.Module = nn.MaxPool2d(2, ceil_mode=True)
            width = _width(
                [*layers, *(m for one in convolutions for m in (one, self.pool)), nn.Flatten()], shape
            )
            # Units are sparse, so the head hardly distinguishes records unless each record is standardised.
            above = [nn.Flatten(), nn.LayerNorm(width, elementwise_affine=False)]
        else:
            self.visible, self.pool, width = nn.Flatten(), nn.Identity(), 64
            self.machines = nn.ModuleList([Machine(nn.Linear(math.prod(shape), 64))])
        self.head = nn.Sequential(*above, *bounded_head(width, 25, classes))

    def forward(self, x: Tensor) -> Tensor:
        """Give (n, classes) scores."""
        code: Tensor = self.visible(x)
        for machine in self.machines:
            code = self.pool(machine(code))
        answer: Tensor = self.head(code)
        return answer

    def reconstruct(self, x: Tensor) -> Tensor:
        """Reconstruct (n, *shape) records by one Gibbs step of the lowest machine."""
        lowest = self.machines[0]
        assert isinstance(lowest, Machine)
        return lowest.down(lowest(self.visible(x))).view(-1, *self.shape)

    def learn_records(self, x: Tensor, *, seed: int = 0, epochs: int = EPOCHS) -> None:
        """Train each machine on the output of the one below, the lowest on records."""
        v = self.visible(x).clamp(*NEAR)
        for machine in self.machines:
            assert isinstance(machine, Machine)
            machine.learn(v, seed, epochs)
            with torch.no_grad():
                v = torch.cat([self.pool(machine(part)) for part in torch.split(v, 1000)])


NETWORKS: dict[str, Builder] = {
    # Two convolutions of 32 and 64 maps with 5x5 patches, a dense layer of 25; batches of 1,800.
    "paper-mnist": partial(paper_cnn, maps=(32, 64), patches=(5, 5), hidden=25),
    # Three of 128, 128 and 256 maps, 3x3 patches and then 5x5, a dense layer of 30; batches of 7,200.
    "paper-cifar10": partial(paper_cnn, maps=(128, 128, 256), patches=(3, 5, 5), hidden=30),
    "authors-mnist": authors_mnist,
    "authors-mnist-quarter": partial(authors_mnist, maps=(8, 16)),
    "authors-cifar10": authors_cifar10,
    "small-cnn": partial(paper_cnn, maps=(8, 16), patches=(5, 5), hidden=25),
    "cnn1d": cnn1d,
    "mlp": mlp,
    "recurrent": Recurrent,
    "attention": Attention,
    "auto-encoder": AutoEncoder,
    "rbm": Boltzmann,
    "deep-belief": partial(Boltzmann, deep=True),
}
BATCH_SIZE = 1800
BATCH_SIZES = {"paper-cifar10": 7200, "authors-cifar10": 7200}
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
    """A network by name, its weights drawn from the seed, or a module; and how a model describes it."""
    if isinstance(network, nn.Module):
        return network, {"kind": "custom", "name": type(network).__name__, "shape": list(shape)}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        built = build(network, shape, classes)
    return built, {"kind": "network", "name": network, "shape": list(shape)}


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
