"""Public encoders by name: an ONNX file, a model of timm, or a folder of Hugging Face transformers."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from adlm.errors import UserError
from adlm.features.backbone import Backbone
from adlm.features.base import Features
from adlm.features.onnx_backbone import OnnxBackbone

TIMM = "timm:"


def load_backbone(
    encoder: str | Path,
    shape: tuple[int, ...],
    *,
    provenance: str | None,
    trained_on: str = "",
    device: str = "cpu",
) -> Features:
    """Return an encoder as a feature map; nothing is downloaded except by `timm` itself.

    Parameters
    ----------
    encoder : `FILE.onnx`, `timm:NAME`, or a folder that `transformers` saved, with a config.json.
    shape : of one record, as the domain declares it.
    provenance : `public` or `private`; there is no default.
    trained_on : its declared training data.
    device : `cpu` or `cuda`.
    """
    origin, text = provenance or "", str(encoder)
    if text.startswith(TIMM):
        module: nn.Module = _timm(text.removeprefix(TIMM), shape)
    elif Path(text).is_dir():
        module = _transformers(Path(text), shape)
    elif text.lower().endswith(".onnx"):
        return OnnxBackbone(text, shape, provenance=origin, trained_on=trained_on, device=device)
    else:
        raise UserError(
            f"a backbone is FILE.onnx, timm:NAME, or a folder that transformers saved (got {text!r})"
        )
    try:
        backbone = Backbone(module, shape, provenance=origin)
    except (RuntimeError, ValueError, AssertionError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:120]
        raise UserError(f"the encoder {text} does not take records of shape {shape} ({reason})") from None
    backbone.trained_on, backbone.label = trained_on, text if text.startswith(TIMM) else Path(text).name
    return backbone


class Normalised(nn.Module):
    """An image encoder, with the channel normalisation that its authors declared."""

    mean: Tensor
    std: Tensor

    def __init__(self, encoder: nn.Module, mean: Any, std: Any) -> None:
        super().__init__()
        self.encoder = encoder
        self.register_buffer("mean", torch.tensor(mean).float().reshape(-1, 1, 1))
        self.register_buffer("std", torch.tensor(std).float().reshape(-1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, C, H, W) in [0, 1] to the encoder's pooled output."""
        encoded = self.encoder((x - self.mean) / self.std)
        if isinstance(encoded, Tensor):
            return encoded
        pooled = getattr(encoded, "pooler_output", None)
        if pooled is not None:
            output: Tensor = pooled
            return output
        hidden: Tensor = encoded.last_hidden_state  # (n, tokens, k), or maps (n, k, h, w)
        return hidden.mean(1) if hidden.ndim == 3 else hidden.flatten(2).mean(2)


def _timm(name: str, shape: tuple[int, ...]) -> nn.Module:
    library = _library("timm")
    _require_colour(f"{TIMM}{name}", shape)
    try:
        model = library.create_model(name, pretrained=True, num_classes=0)
    except Exception as error:  # the type of error depends on the source of the weights
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
        raise UserError(f"timm has no model {name!r}, or not its weights ({reason})") from None
    config = library.data.resolve_model_data_config(model)
    return Normalised(model, config["mean"], config["std"])


def _transformers(folder: Path, shape: tuple[int, ...]) -> nn.Module:
    library = _library("transformers")
    _require_colour(str(folder), shape)
    try:
        settings = json.loads((folder / "preprocessor_config.json").read_text(encoding="utf-8"))
        model = library.AutoModel.from_pretrained(str(folder), local_files_only=True)
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
        raise UserError(
            f"{folder} is not a folder of an image encoder, with config.json, weights and "
            f"preprocessor_config.json ({reason})"
        ) from None
    return Normalised(model, settings.get("image_mean", [0.5] * 3), settings.get("image_std", [0.5] * 3))


def _require_colour(name: str, shape: tuple[int, ...]) -> None:
    if len(shape) != 3 or shape[0] != 3:
        raise UserError(f'the encoder {name} takes colour images; declare colour = "rgb" (got shape {shape})')


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        if error.name == name:
            reason, remedy = "which is not installed", "install it"
        else:  # it is installed, but one of its dependencies is not
            line = (str(error).strip().splitlines() or [type(error).__name__])[0][:120]
            reason, remedy = f"which is installed but cannot be imported ({line})", "install what it lacks"
        raise UserError(f"this backbone needs {name}, {reason}; {remedy}, or give an ONNX file") from None
