"""Encoders of the user as public feature maps: PyTorch modules, ONNX files, timm, Hugging Face transformers.

And a test that a map's output for a record does not depend on other records.
"""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from adlm.errors import UserError
from adlm.features.base import Features, PriorStatistics, declared, unit_norm

TIMM = "timm:"
PROBES = 8


class Backbone(Features):
    """Wrap a frozen module: its output, flattened, less a public centre, scaled to unit norm.

    The module should be public: trained on data without anyone in the private data set, or on nothing. Its
    weights go into the fingerprint, so a release cannot be read with another one. As adlm cannot build it
    again from a certificate, give it to `fit(release, features=...)` and `Model.load(folder, features=...)`.

    Parameters
    ----------
    module : maps (n, *shape) in [0, 1] to (n, ...).
    shape : of one record.
    centre : public mean of its output, subtracted before scaling; None for no centring.
    provenance : `public` when no private record had a part in the module or the centre, else `private`: a
        release is then stamped and no epsilon is proved of it. There is no default.
    """

    def __init__(
        self, module: nn.Module, shape: tuple[int, ...], centre: Tensor | None = None, *, provenance: str = ""
    ) -> None:
        super().__init__()
        self.provenance = declared(provenance, f"the backbone {type(module).__name__}")
        self.module, self.shape = module.eval(), tuple(shape)
        for parameter in self.module.parameters():
            parameter.requires_grad_(False)
        with torch.inference_mode():
            self.width = self.module(torch.zeros(1, *self.shape)).flatten(1).shape[1]
        if centre is not None and centre.shape != (self.width,):
            raise UserError(f"the centre must have shape ({self.width},), got {tuple(centre.shape)}")
        self.register_buffer("centre", torch.zeros(self.width) if centre is None else centre.float())
        self.prior: PriorStatistics | None = None
        self.label = ""  # source of the module, if it was loaded by name

    centre: Tensor

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, *shape) to (n, width)."""
        self.module.eval()  # batch statistics would couple records
        return unit_norm(self.module(x).flatten(1) - self.centre)

    def spec(self) -> dict[str, Any]:
        """Describe the map; the weights are in the fingerprint."""
        kind = type(self.module)
        spec = {
            "name": "backbone",
            "module": f"{kind.__module__}.{kind.__qualname__}",
            "shape": list(self.shape),
            "width": self.width,
        }
        return spec | ({"encoder": self.label} if self.label else {})


class OnnxBackbone(Features):
    """An encoder's first output, flattened and scaled to unit norm.

    The file's SHA-256 is in the description, and so in the fingerprint: a release cannot be read with another
    encoder. Records come in as (n, *shape) in [0, 1]; if the file's metadata has `image_mean` and `image_std`
    (JSON lists, one number a channel), they are normalised by these first.

    Parameters
    ----------
    file : the ONNX file. It has one input, (n, C, H, W) or (n, size), of single precision.
    shape : of one record; (H, W) is given to the encoder as (1, H, W).
    provenance : `public` when no private record had a part in the encoder, else `private`: a release is then
        stamped and no epsilon is proved of it. There is no default.
    trained_on : the encoder's declared training data, for the certificate and the report.
    device : `cpu`, or `cuda` where onnxruntime has it.
    """

    batch = 64

    def __init__(
        self,
        file: Path | str,
        shape: tuple[int, ...],
        *,
        provenance: str,
        trained_on: str = "",
        device: str = "cpu",
    ) -> None:
        super().__init__()
        path = Path(file)
        self.provenance = declared(provenance, f"the encoder {path}")
        self.trained_on = trained_on
        try:
            self.data = path.read_bytes()
        except OSError as error:
            raise UserError(f"the encoder {path} cannot be read ({error.strerror or error})") from None
        self.name, self.shape, self.device = path.name, tuple(int(s) for s in shape), device
        self.sha256 = hashlib.sha256(self.data).hexdigest()
        self._open()
        zero = torch.zeros(1, *self.shape)
        self.width = self._run(zero).shape[1]

    def _open(self) -> None:
        runtime = _onnxruntime()
        options = runtime.SessionOptions()
        options.log_severity_level = 3
        have = runtime.get_available_providers()
        accelerators = ["CUDAExecutionProvider"] if self.device == "cuda" else []
        providers = [name for name in accelerators if name in have] + ["CPUExecutionProvider"]
        try:
            self.session = runtime.InferenceSession(self.data, options, providers=providers)
        except Exception as error:  # onnxruntime has no common base class for its errors
            reason = str(error).strip().splitlines()[0][:120]
            raise UserError(f"{self.name} is not an ONNX file that onnxruntime reads ({reason})") from None
        inputs = self.session.get_inputs()
        if len(inputs) != 1 or inputs[0].type != "tensor(float)":
            raise UserError(f"the encoder {self.name} must have one input, of single precision")
        self.input, expected = inputs[0].name, list(inputs[0].shape)
        shape = (1, *self.shape) if len(self.shape) == 2 else self.shape
        fits = len(expected) == 1 + len(shape) and all(
            not isinstance(side, int) or side == size for side, size in zip(expected[1:], shape, strict=True)
        )
        if not fits:
            raise UserError(
                f"the encoder {self.name} takes records of shape {_shown(expected[1:])}, and these are "
                f"declared to have {_shown(shape)}; declare the encoder's size and colour"
            )
        self.given, self.one_by_one = shape, expected[0] == 1
        metadata = self.session.get_modelmeta().custom_metadata_map
        mean, std = _channels(metadata, "image_mean", 0.0), _channels(metadata, "image_std", 1.0)
        across = (1, -1, *[1] * (len(shape) - 1))
        self.mean = np.asarray(mean, np.float32).reshape(across)
        self.std = np.asarray(std, np.float32).reshape(across)

    def _run(self, x: Tensor) -> Tensor:
        records = x.detach().cpu().float().numpy().reshape(-1, *self.given)
        records = np.ascontiguousarray((records - self.mean) / self.std)
        step = 1 if self.one_by_one else len(records)
        try:
            parts = [
                self.session.run(None, {self.input: records[i : i + step]})[0]
                for i in range(0, len(records), max(step, 1))
            ]
        except Exception as error:
            reason = str(error).strip().splitlines()[0][:120]
            raise UserError(f"the encoder {self.name} does not take these records ({reason})") from None
        outputs = np.concatenate(parts)
        if len(outputs) != len(records):
            raise UserError(f"the encoder {self.name} must give one output for each record")
        return torch.from_numpy(outputs.reshape(len(outputs), -1).astype(np.float32))

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, *shape) to (n, width)."""
        return unit_norm(self._run(x)).to(x.device)

    def spec(self) -> dict[str, Any]:
        """Describe the map: the file's name and its hash."""
        shape = list(self.shape)
        return {"name": "onnx", "file": self.name, "sha256": self.sha256, "shape": shape, "width": self.width}

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the session, which belongs to this process; it is rebuilt from the file's bytes."""
        return {key: value for key, value in self.__dict__.items() if key != "session"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Open the file's bytes again."""
        self.__dict__.update(state)
        self._open()


def _channels(metadata: dict[str, str], key: str, plain: float) -> tuple[float, ...]:
    try:
        values = tuple(float(value) for value in json.loads(metadata[key]))
    except KeyError:
        return (plain,)
    except (ValueError, TypeError):
        raise UserError(
            f"the encoder's metadata {key} must be a list of numbers (got {metadata[key]!r})"
        ) from None
    if key == "image_std" and min(values, default=0.0) <= 0:
        raise UserError(f"the encoder's metadata {key} must be above 0 (got {metadata[key]!r})")
    return values


def _shown(shape: Any) -> str:
    return " x ".join(str(side) for side in shape)


def _onnxruntime() -> Any:
    try:
        return importlib.import_module("onnxruntime")
    except ImportError:
        raise UserError("an encoder in an ONNX file needs onnxruntime; install adlm[export]") from None


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


# ---- Does the output for a record depend on that record alone? ----


def coupling(
    forward: Callable[[Tensor], Tensor],
    shape: tuple[int, ...],
    *,
    device: torch.device | str = "cpu",
    rtol: float = 1e-3,
    atol: float = 1e-4,
) -> str | None:
    """Return what else than the record a map's output for it depends on, or None if nothing was found.

    The proof takes the features of a record, and its relevances, to be a function of that record alone. The
    map is called on random records one by one, in a batch, in another order and again. This finds batch
    statistics and changing state. It cannot find dependence that shows only on some records (experts with a
    capacity that random records do not exceed), only in larger batches than the one tried, or only after more
    calls. So a user-supplied feature map (`engine.records`) and a relevance network (`paper.relevance`) are
    given one record at a time, and of their batches nothing is assumed.

    Parameters
    ----------
    forward : takes (n, *shape) in [0, 1]; whatever it raises is raised.
    rtol, atol : tolerances for rounding between two outputs.
    """
    noise = torch.rand(PROBES, *shape, generator=torch.Generator().manual_seed(0))
    noise[0], noise[1] = 0.0, 1.0  # extremes, which move a statistic of a batch most
    noise[3] *= 0.01
    noise = noise.to(device)
    order = torch.randperm(PROBES, generator=torch.Generator().manual_seed(1)).to(device)

    def same(one: Tensor, two: Tensor) -> bool:
        return torch.allclose(one.double(), two.double(), rtol=rtol, atol=atol, equal_nan=True)

    with torch.no_grad():
        alone = torch.cat([forward(noise[i : i + 1]) for i in range(PROBES)])
        together = forward(noise)
        if not same(alone, together):
            return "the other records of its batch"
        if not same(together[order], forward(noise[order])):
            return "its place in the batch"
        if not same(together, forward(noise)):
            return "what the map was asked before"
    return None
