"""The encoding of a table as part of an ONNX graph: raw columns in, predictions out.

A numeric column is a double (NaN where missing), a date a double that counts days from 1970-01-01, any other
column a string (empty where missing); each is (n, 1). A graph cannot raise an error for a value that
the domain refuses: the record's probabilities are NaN and its code is -1; a predicted number is NaN.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from adlm.public.domain.column import Column
from adlm.public.domain.encoding import constant, marks_of
from adlm.public.domain.table import TableDomain

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
