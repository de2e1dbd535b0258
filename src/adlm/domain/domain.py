"""The public description of the records: bounds, shape, classes, neighbouring relation."""

from __future__ import annotations

import math
import numbers
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
import tomli_w
from numpy.typing import NDArray

from adlm.errors import UserError

# ---- Validation of a domain's settings: each check returns the normalised value or raises a sentence.

Parsed = TypeVar("Parsed")


def shape(given: Any) -> tuple[int, ...]:
    """A record's shape: integers of at least 1."""
    values = _sequence("shape", given)
    if not values:
        raise UserError("domain.shape must have at least one dimension (got none)")
    for value in values:
        if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 1:
            raise UserError(f"domain.shape must hold integers of at least 1 (got {show(value)})")
    if math.prod(int(value) for value in values) >= 2**31:
        raise UserError(f"domain.shape must have fewer than 2^31 values (got {show(values)})")
    return tuple(int(value) for value in values)


def bound(key: str, given: Any, size: int) -> float | tuple[float, ...]:
    """One finite number, or one for each of `size` features."""
    if isinstance(given, numbers.Real):
        return _number(key, given)
    values = _sequence(key, given)
    if len(values) != size:
        raise UserError(
            f"domain.{key} must be one number or one for each of the {size} features (got {len(values)})"
        )
    return tuple(_number(key, value) for value in values)


def _number(key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise UserError(f"domain.{key} must hold numbers (got {show(value)})")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise UserError(f"domain.{key} must be finite (got {show(value)}); declare a public bound")
    return number


def names(key: str, given: Any, what: str) -> tuple[str, ...]:
    """Distinct names that any file can hold; `what` is what each of them names."""
    values = _sequence(key, given)
    for value in values:
        if not isinstance(value, str) or not value or not _encodable(value):
            raise UserError(f"domain.{key} must hold names in quotes (got {show(value)})")
    seen: set[str] = set()
    for value in values:
        if value in seen:
            raise UserError(f"domain.{key} must name each {what} once (got {value!r} twice)")
        seen.add(value)
    return tuple(str(value) for value in values)


def _encodable(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def truth(key: str, value: Any) -> None:
    """Refuse a value that is neither true nor false."""
    if not isinstance(value, bool):
        raise UserError(f"domain.{key} must be true or false (got {show(value)})")


def one_of(key: str, value: Any, allowed: tuple[str, ...]) -> None:
    """Refuse a value that is not an allowed word."""
    if not isinstance(value, str) or value not in allowed:
        raise UserError(f"domain.{key} must be one of {', '.join(allowed)} (got {show(value)})")


def _sequence(key: str, given: Any) -> list[Any]:
    if isinstance(given, np.ndarray):
        given = given.reshape(-1).tolist()
    if isinstance(given, str) or not isinstance(given, list | tuple):
        raise UserError(f"domain.{key} must be a list (got {show(given)})")
    return list(given)


def show(value: Any) -> str:
    """Format a value for a message: short, on one line."""
    if isinstance(value, int) and abs(value) >= 10**30:
        return "a very large number"  # printing it could pass Python's limit on digits
    try:
        text = ascii(value)
    except (ValueError, RecursionError):
        text = f"a {type(value).__name__}"
    return text if len(text) <= 60 else text[:57] + "..."


def reason(error: BaseException) -> str:
    """The reason of an error, on one line."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error).replace("\n", " ") or type(error).__name__


def toml(text: str) -> dict[str, Any]:
    """Read the text of a domain file."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"a domain must be valid TOML ({reason(error)})") from None


def named_columns(raw: Any) -> list[tuple[str, Any]] | None:
    """Columns by name, from the sections of a file or the list of `to_dict`; None for anything else."""
    if isinstance(raw, Mapping):
        return [(str(name), settings) for name, settings in raw.items()]
    if isinstance(raw, list | tuple) and all(isinstance(c, Mapping) and "name" in c for c in raw):
        return [(str(c["name"]), {key: v for key, v in c.items() if key != "name"}) for c in raw]
    return None


def load(path: str | Path, parse: Callable[[str], Parsed]) -> Parsed:
    """Read a domain file; an error names the file."""
    try:
        return parse(Path(path).read_text(encoding="utf-8"))
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    except (OSError, ValueError) as error:  # a missing file, or bytes that are not UTF-8
        raise UserError(f"cannot read the domain file {path} ({reason(error)})") from None


class DomainFile:
    """A domain that is declared in a TOML file."""

    @classmethod
    def from_dict(cls, values: Any) -> Self:
        """Make a domain from settings."""
        raise NotImplementedError

    @classmethod
    def from_toml(cls, text: str) -> Self:
        """Make a domain from the text of a domain file."""
        return cls.from_dict(toml(text))

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a domain file; an error in it names the file."""
        return load(path, cls.from_toml)


# ---- Encoding of labels: class names or integers to positions in the declared classes.

_INTEGER = re.compile(r"-?(0|[1-9][0-9]*)", re.ASCII)


def encode_labels(y: Any, classes: Sequence[str]) -> NDArray[np.int64]:
    """Codes of labels, (n,) int64 in 0..M-1.

    Parameters
    ----------
    y
        (n,) labels: strings that are class names, or integers.
    classes
        The M class names. If any of them is an integer ("7"), a number is the class of that name;
        otherwise it is a code. So no label is ambiguous.
    """
    if hasattr(y, "detach"):
        y = y.detach().cpu().numpy()
    try:
        labels = _objects(y) if isinstance(y, list | tuple) else np.asarray(y)
    except ValueError:
        raise UserError("labels must be a list of one per record (got uneven rows)") from None
    if labels.ndim != 1:
        raise UserError(f"labels must be a list of one per record, shape (n,) (got shape {labels.shape})")
    if len(labels) == 0:
        raise UserError("there are no labels (got an empty array); give one for each record")
    code = _coder(classes)
    if labels.dtype == object:  # may mix texts and numbers, which cannot be sorted together
        return np.array([code(label) for label in labels], dtype=np.int64)
    distinct, inverse = np.unique(labels, return_inverse=True)
    codes = np.array([code(label) for label in distinct.tolist()], dtype=np.int64)
    return codes[inverse]


def _objects(y: Sequence[Any]) -> NDArray[Any]:
    """A list's labels unchanged: NumPy would convert all of them to one type."""
    if any(isinstance(label, list | tuple | np.ndarray) for label in y):
        return np.asarray(y)
    labels = np.empty(len(y), dtype=object)
    labels[:] = [label.item() if hasattr(label, "item") else label for label in y]
    return labels


def _coder(classes: Sequence[str]) -> Callable[[Any], int]:
    position = {name: code for code, name in enumerate(classes)}
    numbers_are_names = any(_INTEGER.fullmatch(name) for name in classes)
    shown = ", ".join(classes[:10]) + (f" and {len(classes) - 10} more" if len(classes) > 10 else "")

    def code(label: Any) -> int:
        if isinstance(label, str):
            if label in position:
                return position[label]
            raise UserError(f"unknown label {label!r}; the domain's classes are {shown}")
        integer = _integer(label, shown)
        if numbers_are_names:
            if str(integer) in position:
                return position[str(integer)]
            raise UserError(f"unknown label {integer}; the domain's classes are {shown}")
        if 0 <= integer < len(classes):
            return integer
        raise UserError(
            f"unknown label {integer}; codes run from 0 to {len(classes) - 1} for the classes {shown}"
        )

    return code


def _integer(label: Any, shown: str) -> int:
    """Convert an integral number to an int; True and False are refused, as their meaning is ambiguous."""
    if isinstance(label, int | np.integer) and not isinstance(label, bool):
        return int(label)
    if isinstance(label, float | np.floating) and float(label).is_integer():
        return int(label)
    raise UserError(f"label {label!r} is neither a class name nor an integer; the classes are {shown}")


# ---- The public description of the records: bounds, shape, classes, neighbours.
#
# A `Domain` is declared and not learnt: a bound computed from records is a release of them without noise,
# and a domain with such bounds must say so. It is also the one place that scales records to [0, 1] and
# turns labels into codes.

NEIGHBOURS = ("replace-one", "add-remove")
FAMILY_USES = {
    "drawn": "pen strokes, bright on a dark background",
    "garments": "single objects on an empty dark background",
    "natural": "photographs",
    "tabular": "rows of a table",
    "vector": "embeddings of bounded length",
    "generic": "anything else: the values themselves",
}
FAMILIES = tuple(FAMILY_USES)
FITS = ("crop", "pad", "stretch")

_BLOCK = 1 << 22  # values scaled at a time: keeps the float64 copy small for 50,000 colour images


@dataclass(frozen=True)
class Domain(DomainFile):
    """The declared, public description of a data set.

    Parameters
    ----------
    shape
        Shape of one record: `(28, 28)`, `(3, 32, 32)`, `(14,)`.
    lower, upper
        Bounds of the values: one number for all features, or one for each feature in C order.
    classes
        Names of the classes, at least two. The position of a name is its code. None with a target.
    neighbours
        `replace-one` (n is public) or `add-remove` (n is private too).
    family
        What kind of records these are, so that suitable public features can be proposed: `drawn`, `garments`,
        `natural`, `tabular`, `vector` or `generic`.
    features
        Optional names of the features in C order, used in messages.
    fit
        How an image file of another aspect is fitted to the shape: `crop` (the default), `pad` or `stretch`.
    target
        Bounds of a numeric target, in place of classes.
    bounds_learnt_from_data
        Whether the bounds, or a scaling before them, were computed from the records. Of a release with such a
        domain nothing is proved, and it is stamped `NOT PRIVATE`.

    Raises
    ------
    UserError
        A setting is missing or out of range, such as an upper bound that does not exceed the lower one.

    Examples
    --------
    >>> from adlm import Domain
    >>> domain = Domain((2,), lower=(18, 0), upper=(90, 250), classes=("healthy", "ill"))
    >>> domain.scale([[54, 125], [17, 400]])
    array([[0.5, 0.5],
           [0. , 1. ]], dtype=float32)
    """

    shape: tuple[int, ...]
    lower: float | tuple[float, ...]
    upper: float | tuple[float, ...]
    classes: tuple[str, ...]
    neighbours: str = "replace-one"
    family: str = "generic"
    features: tuple[str, ...] | None = None
    target: tuple[float, float] | None = None
    fit: str | None = None
    bounds_learnt_from_data: bool = False

    def __post_init__(self) -> None:
        put = object.__setattr__  # a frozen dataclass can only normalise its fields this way
        put(self, "shape", shape(self.shape))
        put(self, "classes", names("classes", self.classes, "class"))
        if self.target is not None:
            put(self, "target", bound("target", self.target, 2))
            if not isinstance(self.target, tuple) or not self.target[1] > self.target[0] or self.classes:
                raise UserError(
                    "domain.target must be a lower and a larger upper bound, and then there are no classes "
                    f"(got {show(self.target)} and {len(self.classes)} classes)"
                )
        elif len(self.classes) < 2:
            raise UserError(f"domain.classes must name at least two classes (got {len(self.classes)})")
        one_of("neighbours", self.neighbours, NEIGHBOURS)
        if self.family not in FAMILIES:
            uses = "; ".join(f"{name} for {use}" for name, use in FAMILY_USES.items())
            raise UserError(
                f"domain.family must be one of {', '.join(FAMILIES)} (got {show(self.family)}): "
                f"{uses}; say which; it must not depend on the records"
            )
        if self.fit is not None:
            one_of("fit", self.fit, FITS)
        truth("bounds_learnt_from_data", self.bounds_learnt_from_data)
        if self.features is not None:
            put(self, "features", names("features", self.features, "feature"))
            if len(self.features) != self.size:
                raise UserError(
                    f"domain.features must name each of the {self.size} features of shape {self.shape} "
                    f"(got {len(self.features)} names)"
                )
        put(self, "lower", bound("lower", self.lower, self.size))
        put(self, "upper", bound("upper", self.upper, self.size))
        for index, low, high in self._pairs():
            where = "" if index is None else f" for feature {self._feature(index)}"
            if not high > low:
                raise UserError(f"domain.upper must exceed domain.lower{where} (got {high:g} and {low:g})")
            if not math.isfinite(high - low):
                raise UserError(
                    f"domain.upper - domain.lower must be a finite number{where} (got {high:g} and {low:g})"
                )

    @property
    def size(self) -> int:
        """Number of values in one record, d."""
        return math.prod(self.shape)

    def scale(self, x: Any) -> NDArray[np.float32]:
        """Clip records to the bounds and scale them to [0, 1].

        Parameters
        ----------
        x
            Records, (n, *shape) or flattened (n, d): an array, a tensor, a frame or nested lists of
            finite numbers.

        Returns
        -------
        ndarray
            (n, *shape) float32 in [0, 1].

        Formal guarantees
        -----------------
        Record i of the result depends on record i and on the declared domain alone, so neighbouring
        data sets stay neighbouring, and each value lies in [0, 1] whatever the record holds.
        """
        scaled = np.empty((len(rows := self._rows(x)), self.size), dtype=np.float32)
        lower, upper = np.asarray(self.lower), np.asarray(self.upper)
        for start, block in self._blocks(rows):
            np.clip(block, lower, upper, out=block)
            block -= lower
            block /= upper - lower
            np.clip(block, 0.0, 1.0, out=block)  # a subnormal range can round the quotient past 1
            scaled[start : start + len(block)] = block
        return scaled.reshape(-1, *self.shape)

    def outside(self, x: Any) -> int:
        """Number of values that `scale` would clip. It is not private, so only the curator may see it."""
        lower, upper = np.asarray(self.lower), np.asarray(self.upper)
        blocks = self._blocks(self._rows(x))
        return sum(int(np.count_nonzero((block < lower) | (block > upper))) for _, block in blocks)

    def encode_labels(self, y: Any) -> NDArray[np.int64]:
        """Codes of the labels, (n,) int64 in 0..M-1.

        A string must be a class name. An integer is the class of that name if any class name is an integer,
        and a code otherwise, so that no label is ambiguous.
        """
        return encode_labels(y, self.classes)

    def to_dict(self) -> dict[str, Any]:
        """JSON values, in the order of the fields, without unset ones."""
        settings = {field.name: getattr(self, field.name) for field in fields(self)}
        return {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in settings.items()
            if value is not None and value is not False
        }

    @classmethod
    def from_dict(cls, values: Any) -> Self:
        """Make a domain from the values of `to_dict`."""
        if not isinstance(values, Mapping):
            raise UserError(f"a domain must be a table of settings (got {show(values)})")
        allowed = [field.name for field in fields(cls)]
        for key in values:
            if key not in allowed:
                raise UserError(f"a domain has no setting {show(key)}; it has {', '.join(allowed)}")
        for key in ("shape", "lower", "upper", "classes"):
            if key not in values:
                raise UserError(f"a domain must set {key}; add a line for it")
        return cls(**values)

    def to_toml(self) -> str:
        """Text of a domain file."""
        return tomli_w.dumps(self.to_dict())

    def _feature(self, index: int) -> str:
        return str(index) if self.features is None else repr(self.features[index])

    def _pairs(self) -> Iterator[tuple[int | None, float, float]]:
        """Index, lower and upper bound of each feature; one pair with no index when both are scalar."""
        if isinstance(self.lower, tuple) or isinstance(self.upper, tuple):
            for index in range(self.size):
                low = self.lower[index] if isinstance(self.lower, tuple) else self.lower
                high = self.upper[index] if isinstance(self.upper, tuple) else self.upper
                yield index, low, high
        else:
            yield None, self.lower, self.upper

    def _rows(self, x: Any) -> NDArray[Any]:
        """Records as a numeric (n, d) array, checked for everything but finiteness."""
        array = _numeric(x)
        if array.shape[1:] != self.shape and array.shape[1:] != (self.size,):
            raise UserError(
                f"records must have shape (n, {', '.join(map(str, self.shape))}) or (n, {self.size}) "
                f"as the domain declares (got {array.shape})"
            )
        if len(array) == 0:
            raise UserError("there are no records (got an empty array); give at least one")
        return array.reshape(len(array), self.size)

    def _blocks(self, rows: NDArray[Any]) -> Iterator[tuple[int, NDArray[np.float64]]]:
        """Float64 copies of a few rows at a time, checked to be finite."""
        step = max(1, _BLOCK // self.size)
        for start in range(0, len(rows), step):
            block = rows[start : start + step].astype(np.float64)
            bad = ~np.isfinite(block)
            if bad.any():
                row, column = (int(k) for k in np.argwhere(bad)[0])
                raise UserError(
                    f"record {start + row} has {block[row, column]} for feature {self._feature(column)}; "
                    "values must be finite numbers, so fill in or remove such records first"
                )
            yield start, block


def _numeric(x: Any) -> NDArray[Any]:
    """Convert to an array; values must be real numbers."""
    if hasattr(x, "detach"):  # a tensor; numpy has no bfloat16, and float32 holds every such value
        x = x.detach().cpu()
        x = (x.float() if x.is_floating_point() and x.element_size() < 4 else x).numpy()
    try:
        array = np.asarray(x)
    except ValueError:
        raise UserError("records must form one array, all of the same shape (got uneven rows)") from None
    if array.dtype == object and all(isinstance(value, numbers.Real) for value in array.flat):
        try:
            array = array.astype(np.float64)
        except OverflowError:
            raise UserError("records must hold numbers that fit a double (got a larger one)") from None
    if array.dtype.kind not in "buif":
        raise UserError(
            f"records must hold real numbers (got values of type {array.dtype}); "
            "encode texts and dates as numbers first"
        )
    return array
