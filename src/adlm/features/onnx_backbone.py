"""A public encoder in an ONNX file as the feature map, run by onnxruntime."""

from __future__ import annotations

import hashlib
import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from adlm.errors import UserError
from adlm.features.base import Features, declared, unit_norm


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
        runtime = _library()
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


def _library() -> Any:
    try:
        return importlib.import_module("onnxruntime")
    except ImportError:
        raise UserError("an encoder in an ONNX file needs onnxruntime; install adlm[export]") from None
