"""Loops over records that are compiled by Numba, a vector register of float32 numbers at a time."""

from __future__ import annotations

import contextlib
import operator
import os
import threading
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any, Generic, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray
from platformdirs import user_cache_dir

# ---- A vector of float32 numbers at a time, for loops that Numba compiles.
#
# Every lane does the same operations. A compiled loop that handles 8 or 16 numbers at once is as fast as a
# processor's vector instructions, and its bits are fixed by its source: `+`, `-`, `*`, `root` and `fused` are
# each rounded once, as IEEE 754 says, lane by lane, and nothing is reordered. So the result is the same on
# every machine, and in plain Python, where a vector is an array. A loop must not depend on how many lanes
# there are: no sum runs over lanes.


def _lanes() -> int:
    """Numbers in a vector register: 16 with AVX-512, else 8.

    It follows from the processor features that Numba compiles for, which are part of the key of its cache.
    """
    from llvmlite import binding

    named = os.environ.get("NUMBA_CPU_FEATURES")
    wide = "+avx512f" in named if named is not None else binding.get_host_cpu_features().get("avx512f")
    return 16 if wide else 8


LANES = _lanes()
Lanes = NDArray[np.float32]  # (LANES,)
Floats = NDArray[np.float32]
Single = Any  # one number, of float32
Number = TypeVar("Number", bound=np.generic)


def numbers(array: NDArray[Number]) -> NDArray[Number]:
    """The numbers of a flat array, for the functions that a loop calls: without a count of references.

    An array that is passed on is counted, which takes as long as some twenty operations.
    """
    return array


def load(values: Floats, start: int) -> Lanes:
    """Read numbers of a flat array, one for each lane."""
    return values[start : start + LANES].copy()


def store(values: Floats, start: int, lanes: Lanes) -> None:
    """Write numbers of a flat array, one for each lane."""
    values[start : start + LANES] = lanes


def every(value: Single) -> Lanes:
    """Put one number in all lanes."""
    return np.full(LANES, value, np.float32)


def halves(first: Single, second: Single) -> Lanes:
    """Put one number in the first eight lanes, and another in the others if there are more."""
    return np.repeat(np.array([first, second], np.float32), 8)[:LANES]


def root(lanes: Lanes) -> Lanes:
    """Square root, rounded once."""
    return np.asarray(np.sqrt(lanes))


def larger(a: Lanes, b: Lanes) -> Lanes:
    """The larger of two numbers: b unless a > b."""
    return np.where(a > b, a, b)


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

    class Vector(types.Type):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(name="Vector")

    @register_default(Vector)
    class Model(models.PrimitiveModel):  # type: ignore[misc]
        def __init__(self, manager: Any, kind: Any) -> None:
            super().__init__(manager, kind, vector)

    lanes = Vector()
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

    def pair(context: Any, builder: Any, form: Any, arguments: Any) -> Any:
        first = builder.insert_element(nothing, arguments[0], ir.Constant(ir.IntType(32), 0))
        both = builder.insert_element(first, arguments[1], ir.Constant(ir.IntType(32), 1))
        places = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [lane // 8 for lane in range(LANES)])
        return builder.shuffle_vector(both, nothing, places)

    def instruction(name: str) -> Callable[..., Any]:
        return lambda context, builder, form, arguments: getattr(builder, name)(*arguments)

    def routine(name: str) -> Callable[..., Any]:
        def generate(context: Any, builder: Any, form: Any, arguments: Any) -> Any:
            kind = ir.FunctionType(vector, [vector] * len(arguments))
            return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)

        return generate

    def choose(context: Any, builder: Any, form: Any, arguments: Any) -> Any:
        return builder.select(builder.fcmp_ordered(">", *arguments), *arguments)

    arrays = [
        signature(types.CPointer(kind), types.Array(kind, 1, "C", readonly=fixed))
        for kind in (types.float32, types.int64)
        for fixed in (False, True)
    ]
    declare(numbers, arrays, data)
    declare(load, [signature(lanes, flat, types.intp)], read)
    declare(store, [signature(types.void, flat, types.intp, lanes)], write)
    declare(every, [signature(lanes, types.float32)], repeat)
    declare(halves, [signature(lanes, types.float32, types.float32)], pair)
    two = [signature(lanes, lanes, lanes)]
    declare(operator.add, two, instruction("fadd"))
    declare(operator.sub, two, instruction("fsub"))
    declare(operator.mul, two, instruction("fmul"))
    declare(larger, two, choose)
    declare(root, [signature(lanes, lanes)], routine(f"llvm.sqrt.v{LANES}f32"))
    declare(fused, [signature(lanes, lanes, lanes, lanes)], routine(f"llvm.fma.v{LANES}f32"))


# ---- Loops over records that are compiled by Numba when they are first called.
#
# A loop is a plain Python function of integers and elementary IEEE operations, which are never reordered,
# nor fused unless the source says so (`fused`). So its bits are those of plain Python. A compiled loop makes
# no temporary arrays and does not hold Python's global lock, so the threads of a pass work side by side.
# Compiling takes a second or less, and some ten seconds in all for the features of images. The machine code
# is cached beside the source, or in the user's cache.

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

_PREPARING = threading.Lock()  # Numba is taught a function once


class Compiled(Generic[Arguments, Result]):
    """A function that is compiled when it is first called.

    Parameters
    ----------
    function : what to compile; it may use what Numba supports, constants and functions of its own module,
        and the vectors above.
    """

    def __init__(self, function: Callable[Arguments, Result]) -> None:
        self._function, self._lock = function, threading.Lock()
        self._compiled: Callable[Arguments, Result] | None = None

    def __call__(self, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        """Call the compiled function; a full disk costs the cache alone."""
        try:
            if self._compiled is not None:
                return self._compiled(*args, **kwargs)
            with self._lock, _one_process():
                compiled = self._compiled or _compile(self._function, cache=True)
                result = compiled(*args, **kwargs)  # compiled, or read from the cache, for its arguments
                self._compiled = compiled
                return result
        except OSError:  # from writing the cache, before the function is run
            self._compiled = _compile(self._function, cache=False)
            return self._compiled(*args, **kwargs)


@contextlib.contextmanager
def _one_process() -> Iterator[None]:
    """Let one process compile at a time: the others then find the machine code in the cache."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(ImportError, OSError):
            import fcntl

            path = Path(user_cache_dir("adlm", ensure_exists=True)) / "compiling"
            fcntl.flock(stack.enter_context(path.open("a")), fcntl.LOCK_EX)
        yield


def readable(values: npt.ArrayLike) -> NDArray[Any]:
    """Return numbers as compiled loops read them: contiguous, of single or double precision."""
    array = np.asarray(values)
    return np.ascontiguousarray(array, array.dtype if array.dtype in (np.float32, np.float64) else np.float64)


@cache
def _with_parts(function: Callable[..., Any]) -> None:
    """Let compiled code call the functions of the same module that a function calls, and those they call."""
    from numba.extending import register_jitable

    for name in function.__code__.co_names:
        part = function.__globals__.get(name)
        if isinstance(part, FunctionType) and part.__module__ == function.__module__:
            _with_parts(part)
            register_jitable(part)


def _compile(function: Callable[Arguments, Result], *, cache: bool) -> Callable[Arguments, Result]:
    """Compile without the global lock and without any reordering of floating-point operations."""
    import numba

    with _PREPARING:
        prepare()
        _with_parts(function)
    settings = {"nogil": True, "fastmath": False, "error_model": "numpy"}
    try:
        compiled: Callable[Arguments, Result] = numba.njit(cache=cache, **settings)(function)
    except RuntimeError:  # no folder that a cache can be written to
        compiled = numba.njit(**settings)(function)
    return compiled
