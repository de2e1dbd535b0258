"""A model as one ONNX file: raw columns or images in, predictions out."""

from __future__ import annotations

import contextlib
import copy
import datetime
import io
import json
import logging
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from torch import Tensor, nn

from adlm.domain import Domain
from adlm.domain.columns import Column
from adlm.domain.encoding import Frame, constant, encode_frame, marks_of
from adlm.domain.table import TableDomain
from adlm.errors import UserError
from adlm.export.verification import library, sign_onnx
from adlm.features import TABLES, Features, Narrowed, OnnxBackbone
from adlm.features.base import unit_norm
from adlm.model.model import Model
from adlm.privacy.certificate import privacy_header
from adlm.runtime.artefact import write_file

# ---- A model on a public encoder as one ONNX file: scaling, the encoder's graph, and the head.
#
# The encoder is an ONNX file already, so its graph is inserted unchanged between the two traced parts.

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


# ---- The encoding of a table as part of an ONNX graph: raw columns in, predictions out.
#
# A numeric column is a double (NaN where missing), a date a double that counts days from 1970-01-01, any
# other column a string (empty where missing); each is (n, 1). A graph cannot raise an error for a value
# that the domain refuses: the record's probabilities are NaN and its code is -1; a predicted number is NaN.

OPSET = 20  # the first with string operators
OUTPUTS = ("probabilities", "code")
PREDICTION = "prediction"  # the output of a numeric target
EPOCH = datetime.date(1970, 1, 1).toordinal()
NUMBER = r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?"
MISSING, UNKNOWN = -1, -2


def input_names(table: TableDomain) -> dict[str, str]:
    """Name of the graph's input for each column: the column's, unless an output has that name."""
    return {c.name: f"{c.name}_" if c.name in (*OUTPUTS, PREDICTION) else c.name for c in table.features}


def with_columns(raw: bytes, table: TableDomain, onnx: Any) -> bytes:
    """Put the encoding of a table before a model that takes encoded `records`."""
    graph = _Graph(onnx.helper, onnx.numpy_helper)
    served = onnx.compose.add_prefix(onnx.load_model_from_string(raw), "served/")
    names, parts, inputs, refused = input_names(table), [], [], graph.constant(False)
    for column in table.features:
        text = column.kind not in ("numeric", "date")
        kind = onnx.TensorProto.STRING if text else onnx.TensorProto.DOUBLE
        inputs.append(onnx.helper.make_tensor_value_info(names[column.name], kind, ["n", 1]))
        encoded, bad = (_texts if text else _numbers)(graph, column, names[column.name], table.missing)
        parts.append(encoded)
        refused = graph.op("Or", refused, bad)
    graph.op("Concat", *parts, axis=1, out="served/records")
    graph.nodes.extend(served.graph.node)
    graph.constants.extend(served.graph.initializer)
    flat = graph.op("Squeeze", refused, graph.constant(np.array([1])))
    missing, number, integer = (
        graph.constant(np.float32("nan")),
        onnx.TensorProto.FLOAT,
        onnx.TensorProto.INT64,
    )
    if table.target is not None:
        graph.op("Where", flat, missing, f"served/{PREDICTION}", out=PREDICTION)
        kinds = {PREDICTION: (number, ["n"])}
    else:
        graph.op("Where", refused, missing, "served/probabilities", out=OUTPUTS[0])
        graph.op("Where", flat, graph.constant(np.int64(-1)), "served/code", out=OUTPUTS[1])
        shapes: Any = (number, ["n", len(table.label.classes)]), (integer, ["n"])
        kinds = dict(zip(OUTPUTS, shapes, strict=True))
    outputs = [onnx.helper.make_tensor_value_info(name, *kind) for name, kind in kinds.items()]
    assembled = onnx.helper.make_graph(graph.nodes, "table", inputs, outputs, graph.constants)
    opsets = [onnx.helper.make_opsetid("", OPSET), onnx.helper.make_opsetid("ai.onnx.ml", 3)]
    model = onnx.helper.make_model(assembled, opset_imports=opsets, ir_version=served.ir_version)
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


def as_inputs(table: TableDomain, frame: Any) -> dict[str, npt.NDArray[Any]]:
    """Convert the columns of a DataFrame (texts, numbers, ISO dates) to the graph's inputs, (n, 1) each."""
    out = {}
    for column in table.features:
        values = [None if _absent(v, table) else v for v in frame[column.name]]
        if column.kind == "numeric":
            array = np.array([np.nan if v is None else float(v) for v in values])
        elif column.kind == "date":
            array = np.array([np.nan if v is None else float(column.day(v) - EPOCH) for v in values])
        else:
            array = np.array(["" if v is None else str(v).strip() for v in values], dtype=object)
        out[input_names(table)[column.name]] = array.reshape(-1, 1)
    return out


def _absent(value: Any, table: TableDomain) -> bool:
    return value is None or value != value or str(value).strip() in table.missing


def trial_columns(table: TableDomain, rows: int = 16) -> dict[str, list[Any]]:
    """Synthetic records that use every value of every column, missing ones too."""
    generator = np.random.default_rng(0)
    out: dict[str, list[Any]] = {}
    for column in table.features:
        if column.kind in ("numeric", "date"):
            low, high = column.number(column.lower), column.number(column.upper)
            values: list[Any] = list(low + (high - low) * generator.uniform(-0.1, 1.1, rows))
            values += [column.number(cut) for cut in column.cuts]
            if column.kind == "date":
                values = [datetime.date.fromordinal(max(1, int(day))) for day in values]
        else:
            (exact, ranges), rest = _lookup(column)
            values = [*exact, *(str(int(low)) for low, _, _ in ranges)]
            values += ["neither this nor that"] if rest is not None else []
        out[column.name] = values + ([None] if column.missing is not None else [])
    longest = max(map(len, out.values()))
    return {name: [values[i % len(values)] for i in range(longest)] for name, values in out.items()}


class _Graph:
    """Nodes and constants of a graph, each with a unique name."""

    def __init__(self, helper: Any, arrays: Any) -> None:
        self._helper, self._arrays = helper, arrays
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self._known: dict[tuple[Any, ...], str] = {}

    def constant(self, value: Any) -> str:
        array = np.asarray(value)
        key = str(array.dtype), array.shape, str(array.tolist())
        if key not in self._known:
            self._known[key] = f"encoding/c{len(self._known)}"
            self.constants.append(self._arrays.from_array(array, self._known[key]))
        return self._known[key]

    def op(self, kind: str, *inputs: str, out: str | None = None, domain: str = "", **settings: Any) -> str:
        name = out or f"encoding/{kind}{len(self.nodes)}"
        self.nodes.append(self._helper.make_node(kind, list(inputs), [name], domain=domain, **settings))
        return name

    def to_float(self, value: str) -> str:
        return self.op("Cast", value, to=1)

    def with_indicator(self, column: Column, value: str, is_missing: str) -> str:
        """Replace missing positions by the public constant, and append the indicator."""
        filled = self.to_float(self.op("Where", is_missing, self.constant(constant(column)), value))
        return (
            filled if column.missing is None else self.op("Concat", filled, self.to_float(is_missing), axis=1)
        )


def _numbers(graph: _Graph, column: Column, x: str, missing: tuple[str, ...]) -> tuple[str, str]:
    shift = float(EPOCH) if column.kind == "date" else 0.0
    low, high = column.number(column.lower), column.number(column.upper)
    is_missing, bad = graph.op("IsNaN", x), graph.op("IsInf", x)
    for mark in sorted(marks_of(column, missing)):
        is_missing = graph.op("Or", is_missing, graph.op("Equal", x, graph.constant(mark - shift)))
    value = graph.op("Where", is_missing, graph.constant(low - shift), x)
    inside = graph.op("Clip", value, graph.constant(low - shift), graph.constant(high - shift))
    moved = graph.op("Sub", inside, graph.constant(low - shift)) if low != shift else inside
    if column.scale == "log":
        log = graph.op("Log", graph.op("Add", moved, graph.constant(1.0)))
        position = graph.op("Div", log, graph.constant(np.log1p(high - low)))
    else:
        position = graph.op("Div", moved, graph.constant(high - low))
    bad = bad if column.missing is not None else graph.op("Or", bad, is_missing)
    return graph.with_indicator(column, position, is_missing), bad


def _texts(graph: _Graph, column: Column, x: str, missing: tuple[str, ...]) -> tuple[str, str]:
    (exact, ranges), rest = _lookup(column)
    codes: Mapping[str, int] = {"": MISSING} | exact | dict.fromkeys(missing, MISSING)
    code = graph.op(
        "LabelEncoder",
        x,
        domain="ai.onnx.ml",
        keys_strings=list(codes),
        values_int64s=list(codes.values()),
        default_int64=UNKNOWN,
    )
    if ranges:
        code = graph.op("Where", _is(graph, code, UNKNOWN), _in_ranges(graph, x, ranges), code)
    if rest is not None:
        other = graph.constant(np.int64(rest))
        code = graph.op("Where", _is(graph, code, UNKNOWN), other, code)
    is_missing, bad = _is(graph, code, MISSING), _is(graph, code, UNKNOWN)
    bad = bad if column.missing is not None else graph.op("Or", bad, is_missing)
    if column.kind == "categorical":
        if column.missing is not None:
            code = graph.op("Where", is_missing, graph.constant(np.int64(column.width - 1)), code)
        places = graph.constant(np.arange(column.width, dtype=np.int64)[None])
        return graph.to_float(graph.op("Equal", code, places)), bad
    top = graph.constant(float(len(column.levels) - 1))
    return graph.with_indicator(column, graph.op("Div", graph.op("Cast", code, to=11), top), is_missing), bad


def _is(graph: _Graph, code: str, value: int) -> str:
    return graph.op("Equal", code, graph.constant(np.int64(value)))


def _in_ranges(graph: _Graph, x: str, ranges: list[tuple[float, float, int]]) -> str:
    """The code of the first range that contains the floor of a text that is a number."""
    is_number = graph.op("RegexFullMatch", x, pattern=NUMBER)
    number = graph.op("Cast", graph.op("Where", is_number, x, graph.constant(np.array("0", object))), to=11)
    floor = graph.op("Floor", number)
    code = graph.constant(np.int64(UNKNOWN))
    for low, high, of in reversed(ranges):
        above = graph.op("GreaterOrEqual", floor, graph.constant(low))
        inside = graph.op("And", above, graph.op("LessOrEqual", floor, graph.constant(high)))
        code = graph.op("Where", inside, graph.constant(np.int64(of)), code)
    return graph.op("Where", is_number, code, graph.constant(np.int64(UNKNOWN)))


def _lookup(column: Column) -> tuple[tuple[dict[str, int], list[tuple[float, float, int]]], int | None]:
    """Codes of texts, as in the reading of files."""
    if column.kind == "categorical":
        return column.category_ranges()
    if column.kind == "ordinal":
        return ({text: code for code, text in enumerate(column.levels)}, []), None
    codes = column.truth()
    if not column.values:
        codes = {form: code for text, code in codes.items() for form in (text, text.upper(), text.title())}
    return (codes, []), None


# ---- A model as one ONNX file: scaling by the domain, public features and head together.
#
# A model of a table takes its raw columns (see `adlm.export.onnx`), or on request the encoded
# record. Any other model takes `records`, (n, *shape) float32 in the units of the domain. Outputs are
# `probabilities`, (n, M), and `code`, (n,); for a record with a value that the domain refuses they are NaN
# and -1. A model of a numeric target has one output, `prediction`, (n,), within the target's bounds. The
# file carries the classes, the certificate, its signature and the table's declaration as metadata.

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
    library("onnx"), library("onnxruntime")
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
