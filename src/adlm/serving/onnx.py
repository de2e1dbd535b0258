"""A model as one ONNX file: scaling by the domain, public features and head together.

A model of a table takes its raw columns (see `adlm.serving.onnx_table`), or on request the encoded record.
Any other model takes `records`, (n, *shape) float32 in the units of the domain. Outputs are `probabilities`,
(n, M), and `code`, (n,); for a record with a value that the domain refuses they are NaN and -1. A model of a
numeric target has one output, `prediction`, (n,), within the target's bounds. The file carries the classes,
the certificate, its signature and the table's declaration as metadata.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import logging
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from torch import Tensor, nn

from adlm.analyst.model import Model
from adlm.errors import UserError
from adlm.privacy.header import privacy_header
from adlm.public.domain import Domain
from adlm.public.domain.encoding import Frame, encode_frame
from adlm.public.domain.table import TableDomain
from adlm.public.features import TABLES, OnnxBackbone
from adlm.runtime.artefact import write_file
from adlm.serving.onnx_encoder import JOINTS, AfterEncoder, BeforeEncoder, encoder_of, joined
from adlm.serving.onnx_table import (
    OPSET,
    OUTPUTS,
    PREDICTION,
    as_inputs,
    input_names,
    trial_columns,
    with_columns,
)
from adlm.serving.verification import library, sign_onnx

TOLERANCE = 1e-5
FEATURE_TOLERANCE = 1e-6  # of features in single precision; a head with large weights amplifies it


class Served(nn.Module):
    """From raw records to class probabilities, or to a number, as one module."""

    _lower: Tensor
    _range: Tensor

    def __init__(self, model: Model) -> None:
        super().__init__()
        lower, span = _bounds(model.certificate.domain)
        self.register_buffer("_lower", lower)
        self.register_buffer("_range", span)
        self.features = None if model.features is None else copy.deepcopy(model.features)
        self.head = copy.deepcopy(model.head).float()
        self._target = model.target

    def forward(self, records: Tensor) -> tuple[Tensor, Tensor] | Tensor:
        """Map (n, *shape) to (n, M) probabilities and (n,) codes, or to (n,) numbers."""
        z = ((records - self._lower) / self._range).clamp(0.0, 1.0)
        z = z if self.features is None else self.features(z)
        if self._target is not None:
            return torch.as_tensor(self.head(z.float())[:, 0].clamp(*self._target))
        probabilities = self.head(z.float()).softmax(1)
        return probabilities, probabilities.argmax(1)


def _steepness(head: nn.Module) -> float:
    """Bound on the change of a probability by rounded features, in TOLERANCE; 1 unless weights are large."""
    if not isinstance(head, nn.Linear):
        return 1.0
    longest = float(head.weight.detach().double().norm(dim=1).max())
    return max(1.0, longest * FEATURE_TOLERANCE / TOLERANCE)


def export_onnx(
    model: Model, out: Path | str, *, encoded: bool = False, key: Ed25519PrivateKey | None = None
) -> None:
    """Write a model as ONNX, after checking that onnxruntime gives the same predictions, to about 1e-5.

    Parameters
    ----------
    model : to be served; its certificate goes into the file's metadata.
    out : the file to write; an earlier one is replaced.
    encoded : for a table, take the encoded record as `records` instead of the raw columns.
    key : signs the file and its certificate's digest.

    Raises
    ------
    UserError : the model cannot be traced, onnxruntime gives other predictions, or a library is missing.

    Examples
    --------
    >>> export_onnx(model, "model.onnx")  # doctest: +SKIP
    """
    trial = _trial(model.certificate.domain)
    encoder = encoder_of(model.features)
    if encoder is None:
        names = OUTPUTS if model.target is None else (PREDICTION,)
        raw = _traced(Served(model).eval(), trial[:2], model, "records", names)
    else:
        raw = _with_encoder(model, encoder, trial[:2])
    table = None if encoded else _table(model)
    inputs: dict[str, Any] = {"records": trial.numpy()}
    if table is not None:
        raw, drawn = with_columns(raw, table, library("onnx")), trial_columns(table)
        inputs, trial = as_inputs(table, drawn), torch.from_numpy(encode_frame(table, Frame(drawn)))
    data = _with_metadata(raw, model, table)
    if key is not None:
        data = sign_onnx(data, model.certificate, key)
    predictions = _run(data, inputs, model)
    own, scale = model.probabilities, _steepness(model.head)
    if model.target is not None:
        own, scale = model.values, model.target[1] - model.target[0]
    if not np.allclose(predictions, own(trial.numpy()), atol=TOLERANCE * scale, rtol=0):
        raise _unable(model, "onnxruntime does not give the same predictions")
    write_file(Path(out), data, what="ONNX model")


def _table(model: Model) -> TableDomain | None:
    spec = model.certificate.features.get("spec") or {}
    return TableDomain.from_dict(spec["table"]) if spec.get("name") in TABLES else None


def _bounds(domain: Domain) -> tuple[Tensor, Tensor]:
    """Lower bounds and ranges of a domain, in the shape of a record."""
    lower = torch.tensor(np.broadcast_to(domain.lower, domain.size).copy(), dtype=torch.float32)
    upper = torch.tensor(np.broadcast_to(domain.upper, domain.size).copy(), dtype=torch.float32)
    return lower.reshape(domain.shape), (upper - lower).reshape(domain.shape)


def _trial(domain: Domain) -> Tensor:
    """A few synthetic records within the bounds."""
    generator = torch.Generator().manual_seed(0)
    share = torch.rand(5, *domain.shape, generator=generator)
    lower = torch.tensor(np.broadcast_to(domain.lower, domain.size).copy()).reshape(domain.shape)
    upper = torch.tensor(np.broadcast_to(domain.upper, domain.size).copy()).reshape(domain.shape)
    return (lower + share * (upper - lower)).float()


def _with_encoder(model: Model, encoder: OnnxBackbone, trial: Tensor) -> bytes:
    """Trace the parts before and after an encoder, and join them with its graph."""
    lower, span = _bounds(model.certificate.domain)
    before = BeforeEncoder(lower, span, encoder).eval()
    scaled = before(trial)
    encoded = torch.from_numpy(encoder.session.run(None, {encoder.input: scaled.numpy()})[0])
    assert model.features is not None
    after = AfterEncoder(model.features, copy.deepcopy(model.head).float()).eval()
    first = _traced(before, trial, model, "records", JOINTS[:1])
    last = _traced(after, encoded, model, JOINTS[1], OUTPUTS)
    try:
        return joined(first, encoder.data, last, library("onnx"))
    except Exception as error:  # arbitrary graphs fail with arbitrary errors
        raise _unable(model, str(error).strip().splitlines()[0]) from None


def _traced(served: nn.Module, trial: Tensor, model: Model, taken: str, names: Sequence[str]) -> bytes:
    buffer = io.BytesIO()
    chatter = logging.getLogger("torch.onnx")
    level = chatter.level
    try:
        chatter.setLevel(logging.ERROR)
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")  # tracing warns of every folded constant
            served(trial.clone().requires_grad_())  # constants that a first call makes stay out of the graph
            torch.onnx.export(
                served,
                (trial,),
                buffer,  # type: ignore[arg-type]  # a stream is what the tracing exporter takes
                dynamo=False,
                opset_version=OPSET,
                input_names=[taken],
                output_names=list(names),
                dynamic_axes={name: {0: "n"} for name in (taken, *names)},
            )
    except Exception as error:  # torch has many kinds of errors for unsupported operations
        raise _unable(model, str(error).strip().splitlines()[0]) from None
    finally:
        chatter.setLevel(level)
    return buffer.getvalue()


def _with_metadata(raw: bytes, model: Model, table: TableDomain | None) -> bytes:
    onnx = library("onnx")
    graph = onnx.load_model_from_string(raw)
    certificate = model.certificate
    summary = privacy_header(certificate, model.stamps) | {
        "classes": list(certificate.domain.classes),
        "target": certificate.domain.target,
        "records": list(certificate.domain.features or ()),
        "inputs": input_names(table) if table is not None else None,
        "privacy": certificate.totals.to_dict(),
        "certificate": certificate.digest,
        "release": certificate.to_dict(),
        "features": certificate.features["spec"] if model.features is not None else None,
    }
    if model.release_signature is not None:
        summary["release_signature"] = model.release_signature.to_dict()
    onnx.helper.set_model_props(graph, {f"adlm.{key}": json.dumps(value) for key, value in summary.items()})
    return bytes(graph.SerializeToString())


def _run(data: bytes, inputs: dict[str, Any], model: Model) -> Any:
    runtime = library("onnxruntime")
    try:
        quiet = runtime.SessionOptions()
        quiet.log_severity_level = 3  # no messages about optimisations
        session = runtime.InferenceSession(data, quiet, providers=["CPUExecutionProvider"])
        return session.run([OUTPUTS[0] if model.target is None else PREDICTION], inputs)[0]
    except Exception as error:  # onnxruntime has no common base class for its errors
        raise _unable(model, str(error).strip().splitlines()[0]) from None


def _unable(model: Model, reason: str) -> UserError:
    what = "the network" if model.features is None else f"the features {model.features.spec().get('name')!r}"
    return UserError(f"{what} cannot be written as ONNX ({reason[:120]}); serve the model with adlm itself")
