"""Eight float32 numbers at a time, for loops that Numba compiles: every lane does the same operations.

A compiled loop that handles eight numbers at once is as fast as a processor's vector instructions, and its
bits are fixed by its source: `+`, `-`, `*`, `root` and `fused` are each rounded once, as IEEE 754 says, lane
by lane, and nothing is reordered. So the result is the same on every machine, and in plain Python, where
eight lanes are an array of eight numbers.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

LANES = 8
Lanes = NDArray[np.float32]  # (8,)
Floats = NDArray[np.float32]
Single = Any  # one number, of float32
Number = TypeVar("Number", bound=np.generic)


def numbers(array: NDArray[Number]) -> NDArray[Number]:
    """The numbers of a flat array, for the functions that a loop calls: without a count of references.

    An array that is passed on is counted, which takes as long as some twenty operations.
    """
    return array


def load(values: Floats, start: int) -> Lanes:
    """Read eight numbers of a flat array."""
    return values[start : start + LANES].copy()


def store(values: Floats, start: int, lanes: Lanes) -> None:
    """Write eight numbers of a flat array."""
    values[start : start + LANES] = lanes


def every(value: Single) -> Lanes:
    """Put one number in all lanes."""
    return np.full(LANES, value, np.float32)


def root(lanes: Lanes) -> Lanes:
    """Square root, rounded once."""
    return np.asarray(np.sqrt(lanes))


def larger(a: Lanes, b: Lanes) -> Lanes:
    """The larger of two numbers: b unless a > b."""
    return np.where(a > b, a, b)


def smaller(a: Lanes, b: Lanes) -> Lanes:
    """The smaller of two numbers: b unless a < b."""
    return np.where(a < b, a, b)


def fused(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
    """a b + c, rounded once."""
    product = a.astype(np.float64) * b.astype(np.float64)  # exact
    wide = c.astype(np.float64)
    total = product + wide
    back = total - product
    error = (product - (total - back)) + (wide - back)
    # Round to odd, so that rounding to float32 is the only rounding: Boldo and Melquiond (2008).
    even = (total.view(np.int64) & 1) == 0
    towards = np.nextafter(total, np.where(error > 0, np.inf, -np.inf))
    return np.where(even & (error != 0), towards, total).astype(np.float32)


@cache
def prepare() -> None:
    """Teach Numba the functions above; called before a loop is compiled."""
    from llvmlite import ir
    from numba.core import cgutils
    from numba.core import types as known_types
    from numba.core.datamodel import models
    from numba.core.datamodel.registry import register_default
    from numba.core.imputils import lower_builtin
    from numba.core.typing.templates import ConcreteTemplate, infer_global, signature

    types: Any = known_types
    vector = ir.VectorType(ir.FloatType(), LANES)
    nothing = ir.Constant(vector, ir.Undefined)

    class EightLanes(types.Type):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(name="EightLanes")

    @register_default(EightLanes)
    class Model(models.PrimitiveModel):  # type: ignore[misc]
        def __init__(self, manager: Any, kind: Any) -> None:
            super().__init__(manager, kind, vector)

    eight = EightLanes()
    flat = types.CPointer(types.float32)

    def declare(function: Any, forms: list[Any], generate: Callable[..., Any]) -> None:
        template = type(
            f"Template_{function.__name__}", (ConcreteTemplate,), {"key": function, "cases": forms}
        )
        known = function is operator.add or function is operator.sub or function is operator.mul
        if known:
            infer_global(function)(template)
        else:
            infer_global(function, types.Function(template))
        for form in forms:
            lower_builtin(function, *form.args)(generate)

    def data(context: Any, builder: Any, form: Any, arguments: Any) -> Any:
        return context.make_array(form.args[0])(context, builder, arguments[0]).data

    def place(builder: Any, values: Any, start: Any) -> Any:
        return builder.bitcast(builder.gep(values, [start]), vector.as_pointer())

    def read(context: Any, builder: Any, form: Any, arguments: Any) -> Any:
        return builder.load(place(builder, *arguments), align=4)

    def write(context: Any, builder: Any, form: Any, arguments: Any) -> Any:
        builder.store(arguments[2], place(builder, *arguments[:2]), align=4)
        return context.get_dummy_value()

    def repeat(context: Any, builder: Any, form: Any, arguments: Any) -> Any:
        first = builder.insert_element(nothing, arguments[0], ir.Constant(ir.IntType(32), 0))
        zeros = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
        return builder.shuffle_vector(first, nothing, zeros)

    def instruction(name: str) -> Callable[..., Any]:
        return lambda context, builder, form, arguments: getattr(builder, name)(*arguments)

    def routine(name: str) -> Callable[..., Any]:
        def generate(context: Any, builder: Any, form: Any, arguments: Any) -> Any:
            kind = ir.FunctionType(vector, [vector] * len(arguments))
            return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)

        return generate

    def chosen(sign: str) -> Callable[..., Any]:
        return lambda context, builder, form, arguments: builder.select(
            builder.fcmp_ordered(sign, *arguments), *arguments
        )

    arrays = [
        signature(types.CPointer(kind), types.Array(kind, 1, "C", readonly=fixed))
        for kind in (types.float32, types.int64)
        for fixed in (False, True)
    ]
    declare(numbers, arrays, data)
    declare(load, [signature(eight, flat, types.intp)], read)
    declare(store, [signature(types.void, flat, types.intp, eight)], write)
    declare(every, [signature(eight, types.float32)], repeat)
    two = [signature(eight, eight, eight)]
    declare(operator.add, two, instruction("fadd"))
    declare(operator.sub, two, instruction("fsub"))
    declare(operator.mul, two, instruction("fmul"))
    declare(larger, two, chosen(">"))
    declare(smaller, two, chosen("<"))
    declare(root, [signature(eight, eight)], routine("llvm.sqrt.v8f32"))
    declare(fused, [signature(eight, eight, eight, eight)], routine("llvm.fma.v8f32"))
