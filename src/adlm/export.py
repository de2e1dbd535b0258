"""A model as one ONNX file: scaling by the domain, public features and head together.

The input `records` is (n, *shape) float32 in the units of the domain; for a table it is the encoded
record, whose numbers the file names in its metadata. Outputs are `probabilities`, (n, M), and `code`, (n,).
The file carries the classes, the totals of the certificate and the table's declaration as metadata.
"""

from __future__ import annotations

import io
import json
import logging
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from adlm.analyst.model import Model
from adlm.artefact import write_file
from adlm.errors import UserError
from adlm.public.domain import Domain

OPSET = 17
TOLERANCE = 1e-5


class Served(nn.Module):
    """From raw records to class probabilities, as one module."""

    _lower: Tensor
    _range: Tensor

    def __init__(self, model: Model) -> None:
        super().__init__()
        domain = model.certificate.domain
        lower = torch.tensor(np.broadcast_to(domain.lower, domain.size).copy(), dtype=torch.float32)
        upper = torch.tensor(np.broadcast_to(domain.upper, domain.size).copy(), dtype=torch.float32)
        self.register_buffer("_lower", lower.reshape(domain.shape))
        self.register_buffer("_range", (upper - lower).reshape(domain.shape))
        self.features = model.features
        self.head = model.head

    def forward(self, records: Tensor) -> tuple[Tensor, Tensor]:
        """Map (n, *shape) to (n, M) probabilities and (n,) codes."""
        z = ((records - self._lower) / self._range).clamp(0.0, 1.0)
        z = z if self.features is None else self.features(z)
        probabilities = self.head(z.float()).softmax(1)
        return probabilities, probabilities.argmax(1)


def export_onnx(model: Model, out: Path | str) -> None:
    """Write a model as ONNX, after checking that onnxruntime gives the same predictions to 1e-5."""
    served = Served(model).float().eval()
    trial = _trial(model.certificate.domain)
    raw = _traced(served, trial[:2], model)
    data = _with_metadata(raw, model)
    with torch.inference_mode():
        expected = served(trial)[0].numpy()
    found = _run(data, trial.numpy(), model)
    if not np.allclose(found, expected, atol=TOLERANCE, rtol=0):
        raise _unable(model, "onnxruntime does not give the same predictions")
    write_file(Path(out), data, what="ONNX model")


def _trial(domain: Domain) -> Tensor:
    """A few records within the bounds, drawn without any data."""
    generator = torch.Generator().manual_seed(0)
    share = torch.rand(5, *domain.shape, generator=generator)
    lower = torch.tensor(np.broadcast_to(domain.lower, domain.size).copy()).reshape(domain.shape)
    upper = torch.tensor(np.broadcast_to(domain.upper, domain.size).copy()).reshape(domain.shape)
    return (lower + share * (upper - lower)).float()


def _traced(served: Served, trial: Tensor, model: Model) -> bytes:
    buffer = io.BytesIO()
    names = ["probabilities", "code"]
    chatter = logging.getLogger("torch.onnx")
    level = chatter.level
    try:
        chatter.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # tracing tells of every constant that it folds
            torch.onnx.export(
                served,
                (trial,),
                buffer,  # type: ignore[arg-type]  # a stream is what the tracing exporter takes
                dynamo=False,
                opset_version=OPSET,
                input_names=["records"],
                output_names=names,
                dynamic_axes={name: {0: "n"} for name in ("records", *names)},
            )
    except Exception as error:  # torch raises many kinds, all of them for an operation without a twin
        raise _unable(model, str(error).strip().splitlines()[0]) from None
    finally:
        chatter.setLevel(level)
    return buffer.getvalue()


def _with_metadata(raw: bytes, model: Model) -> bytes:
    onnx = _library("onnx")
    graph = onnx.load_model_from_string(raw)
    certificate = model.certificate
    told = {
        "classes": list(certificate.domain.classes),
        "records": list(certificate.domain.features or ()),
        "privacy": certificate.totals.to_dict(),
        "stamps": list(certificate.stamps),
        "certificate": certificate.to_dict()["digest"],
        "features": certificate.features["spec"] if model.features is not None else None,
    }
    onnx.helper.set_model_props(graph, {f"adlm.{key}": json.dumps(value) for key, value in told.items()})
    return bytes(graph.SerializeToString())


def _run(data: bytes, records: Any, model: Model) -> Any:
    runtime = _library("onnxruntime")
    try:
        session = runtime.InferenceSession(data, providers=["CPUExecutionProvider"])
        return session.run(["probabilities"], {"records": records})[0]
    except Exception as error:  # onnxruntime has no common base class for its errors
        raise _unable(model, str(error).strip().splitlines()[0]) from None


def _library(name: str) -> Any:
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError:
        raise UserError(f"exporting needs {name}; install adlm[export]") from None


def _unable(model: Model, reason: str) -> UserError:
    what = "the network" if model.features is None else f"the features {model.features.spec().get('name')!r}"
    return UserError(f"{what} cannot be written as ONNX ({reason[:120]}); serve the model with adlm itself")
