"""A model on a public encoder as one ONNX file: scaling, the encoder's graph, and the head.

The encoder is an ONNX file already, so its graph is inserted unchanged between the two traced parts.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from adlm.public.features import Features, Narrowed, OnnxBackbone
from adlm.public.features.base import unit_norm

JOINTS = ("adlm_scaled", "adlm_encoded")


def encoder_of(features: Features | None) -> OnnxBackbone | None:
    """Return the encoder of a feature map, which may be narrowed; None for any other map."""
    while isinstance(features, Narrowed):
        features = features.inner
    return features if isinstance(features, OnnxBackbone) else None


class BeforeEncoder(nn.Module):
    """From raw records to the encoder's input."""

    lower: Tensor
    span: Tensor
    mean: Tensor
    std: Tensor

    def __init__(self, lower: Tensor, span: Tensor, encoder: OnnxBackbone) -> None:
        super().__init__()
        self.given = encoder.given
        self.register_buffer("lower", lower)
        self.register_buffer("span", span)
        self.register_buffer("mean", torch.from_numpy(encoder.mean))
        self.register_buffer("std", torch.from_numpy(encoder.std))

    def forward(self, records: Tensor) -> Tensor:
        """Map (n, *shape) to (n, *the encoder's shape)."""
        scaled = ((records - self.lower) / self.span).clamp(0.0, 1.0)
        return (scaled.reshape(-1, *self.given) - self.mean) / self.std


class AfterEncoder(nn.Module):
    """From the encoder's output to class probabilities."""

    def __init__(self, features: Features, head: nn.Module) -> None:
        super().__init__()
        chain: list[Narrowed] = []
        while isinstance(features, Narrowed):
            chain.insert(0, features)
            features = features.inner
        self.chain, self.head = chain, head  # a plain list: only the widths and directions are traced

    def forward(self, encoded: Tensor) -> tuple[Tensor, Tensor]:
        """Map the output to (n, M) probabilities and (n,) codes."""
        z = unit_norm(encoded.flatten(1))
        for narrower in self.chain:
            z = narrower.of(z)
        probabilities = self.head(z.float()).softmax(1)
        return probabilities, probabilities.argmax(1)


def joined(before: bytes, encoder: bytes, after: bytes, onnx: Any) -> bytes:
    """Join three graphs into one file.

    Parameters
    ----------
    before, after : traced parts, of one operator set.
    encoder : the encoder's file; converted to that operator set.
    onnx : the library.
    """
    first, last = (onnx.load_model_from_string(data) for data in (before, after))
    middle = onnx.load_model_from_string(encoder)
    version = next(entry.version for entry in first.opset_import if not entry.domain)
    if next(entry.version for entry in middle.opset_import if not entry.domain) != version:
        middle = onnx.version_converter.convert_version(middle, version)
    ir = max(first.ir_version, middle.ir_version, last.ir_version)
    first.ir_version = middle.ir_version = last.ir_version = ir
    weights = {tensor.name for tensor in middle.graph.initializer}
    source = next(entry.name for entry in middle.graph.input if entry.name not in weights)
    target = middle.graph.output[0].name
    middle = onnx.compose.add_prefix(middle, "encoder/")
    with_encoder = onnx.compose.merge_models(
        first, middle, io_map=[(JOINTS[0], f"encoder/{source}")], outputs=[f"encoder/{target}"]
    )
    last = onnx.compose.add_prefix(last, "head/", rename_inputs=False, rename_outputs=False)
    merged = onnx.compose.merge_models(with_encoder, last, io_map=[(f"encoder/{target}", JOINTS[1])])
    return bytes(merged.SerializeToString())
