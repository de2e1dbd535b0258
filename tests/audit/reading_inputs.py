"""Does reading let one image or vector change another? Neighbouring folders and files, before any noise.

Neighbours are written in every form that is read, with one record as unusual as the form allows: other size,
mode, bit depth, orientation or format, a long vector, another name. All other records and their features are
compared byte for byte, also with the same record read alone.
"""

from __future__ import annotations

import csv
import io
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from PIL import Image
from pyarrow import parquet
from tests.audit.reading import Outcome, finding

from adlm.audit.statistics import Finding
from adlm.data.reading import read_batches
from adlm.domain.columns import Column
from adlm.domain.table import TableDomain
from adlm.errors import UserError
from adlm.features import for_domain
from adlm.privacy.noise import Source

N = 6  # records of a case, besides the odd one
OWN, OTHERS = "own", ("a", "b")  # classes: of the record (or person) that differs, and of all others
SIZE = 12
RELATIONS = ("replace-one", "add-remove", "persons")


@dataclass(frozen=True)
class Record:
    """One record to be written: an image file or a vector, its class, its person."""

    data: Any
    label: str
    person: str
    name: str


@dataclass(frozen=True)
class Form:
    """How records are written and declared, and whether the form names persons."""

    write: Callable[[Path, list[Record], Random], Path]
    images: bool
    persons: bool


Rows = tuple[bytes, ...]
Reader = Callable[[Path, TableDomain, Random], Rows]


def declared(form: Form, rng: Random, *, persons: bool) -> TableDomain:
    """Declare the records of a form."""
    label = Column("label", "label", classes=(OWN, *OTHERS))
    person = (Column("who", "person", records=rng.choice([1, 2])),) if persons else ()
    if form.images:
        colour = rng.choice(["grey", "rgb"])
        fit = rng.choice(["crop", "pad", "stretch"])
        image = Column("item", "image", size=SIZE, colour=colour, family="generic", fit=fit)
        return TableDomain((image, label, *person))
    return TableDomain((Column("item", "vector", size=5, norm=1.0), label, *person))


def product(path: Path, domain: TableDomain, rng: Random) -> Rows:
    """Read as the product does, in batches of any size, up to the features of each record."""
    features, array = for_domain(domain.domain), domain.domain
    rows: list[bytes] = []
    for batch in read_batches(path, domain, rows=rng.choice([1, 2, 256])):
        with torch.inference_mode():
            z = features(torch.from_numpy(array.scale(batch.x))).numpy()
        rows += _rows(batch.x, z, batch.y)
    return tuple(rows)


def _rows(x: npt.NDArray[Any], z: npt.NDArray[Any], y: npt.NDArray[np.int64]) -> Iterable[bytes]:
    return (
        bytes([int(code)]) + one.tobytes() + mapped.tobytes()
        for one, mapped, code in zip(x, z, y, strict=True)
    )


def brightened(path: Path, domain: TableDomain, rng: Random) -> Rows:
    """Records divided by the largest value of all: what a careless loader does (a control)."""
    del rng
    batches = list(read_batches(path, domain))
    x = np.concatenate([batch.x for batch in batches]).astype(np.float32)
    y = np.concatenate([batch.y for batch in batches])
    return tuple(_rows(x / max(float(np.abs(x).max()), 1e-9), x[:, :0], y))


# Records


def _picture(rng: Random) -> bytes:
    """An ordinary image file."""
    size = (rng.randrange(8, 40), rng.randrange(8, 40))
    return _saved(_noise(rng, size, "RGB"), rng.choice(["PNG", "JPEG", "WEBP"]))


def _noise(rng: Random, size: tuple[int, int], mode: str) -> Image.Image:
    deep = mode == "I;16"
    values = np.random.default_rng(rng.randrange(1 << 30)).integers(
        0, 1 << (16 if deep else 7), (size[1], size[0], 4), dtype=np.uint16 if deep else np.uint8
    )
    if deep:
        return Image.fromarray(np.ascontiguousarray(values[..., 0]))
    return Image.fromarray(values).convert(mode)


def _saved(image: Image.Image, kind: str, **settings: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **settings)
    return stream.getvalue()


def _odd_picture(rng: Random) -> bytes:
    """An unusual image: of any mode, size, orientation and brightness, or no image at all."""
    size = rng.choice([(2, 2), (3, 300), (500, 7), (SIZE, SIZE), (64, 64), (1, 1)])
    mode = rng.choice(["1", "L", "P", "LA", "RGBA", "CMYK", "I;16", "RGB"])
    kind = "JPEG" if mode == "CMYK" else "TIFF" if mode == "I;16" and rng.random() < 0.5 else "PNG"
    exif = Image.Exif()
    exif[0x0112] = rng.randrange(0, 12)
    settings: dict[str, Any] = {"exif": exif} if kind in ("PNG", "JPEG") else {}
    image = Image.new("L", size, 255) if rng.random() < 0.3 else _noise(rng, size, mode)
    data = _saved(image, kind, **settings)
    return rng.choice([data, data, data, data[: len(data) // 2], b""])


def _vector(rng: Random) -> list[float]:
    return [rng.gauss(0, 0.3) for _ in range(5)]


def _odd_vector(rng: Random) -> Any:
    values: list[Any] = [0.0, -0.0, 1e-300, 1e30, -1e308, float("nan"), float("inf"), None, 1.0, 2.0**-149]
    long = [rng.choice([0.0, 1e30, -1e20, 1.0]) for _ in range(5)]
    return rng.choice([[rng.choice(values) for _ in range(5)], long, [0.0] * 5, [1.0] * 4, None, [3e38] * 5])


# Forms


def _class_folders(root: Path, records: list[Record], rng: Random) -> Path:
    for record in records:
        folder = root / record.label / rng.choice(["", "deeper"])
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{record.name}.{rng.choice(['png', 'jpg', 'JPEG', 'webp'])}").write_bytes(record.data)
    return root


def _listed(root: Path, records: list[Record], rng: Random) -> Path:
    with (root / "list.csv").open("w", newline="") as stream:
        writer = csv.writer(stream, lineterminator=rng.choice(["\n", "\r\n"]))
        writer.writerow(["item", "label", "who"])
        for record in records:
            (root / f"{record.name}.png").write_bytes(record.data)
            writer.writerow([f"{record.name}.png", record.label, record.person])
    return root


def _parquet(root: Path, records: list[Record], rng: Random) -> Path:
    items: Any = [record.data for record in records]
    if isinstance(items[0], bytes) and rng.random() < 0.5:
        items = [{"bytes": data, "path": None} for data in items]
    table = pa.table(
        {
            "who": [record.person for record in records],
            "item": items,
            "label": [record.label for record in records],
        }
    )
    parquet.write_table(table, root / "a.parquet", row_group_size=rng.choice([1, 3, 100]))
    return root / "a.parquet"


FORMS: dict[str, Form] = {
    "folders of images": Form(_class_folders, images=True, persons=False),
    "images listed in a CSV file": Form(_listed, images=True, persons=True),
    "Parquet files of images": Form(_parquet, images=True, persons=True),
    "Parquet files of vectors": Form(_parquet, images=False, persons=True),
}


def search_inputs(form: Form, reader: Reader, cases: int, seed: int = 0) -> Outcome:
    """Compare the records that a reader returns for random neighbours.

    Parameters
    ----------
    form : how records are written.
    reader : returns the bytes of each record; the first byte is the class.
    cases : neighbours to draw.
    seed : of the draws.
    """
    outcome = Outcome()
    for number in range(cases):
        rng = Random(f"{seed} {number}")
        relation = rng.choice(RELATIONS if form.persons else RELATIONS[:2])
        domain = declared(form, rng, persons=relation == "persons")
        one, two = _neighbours(form, relation, rng)
        try:
            rows = [_read(form, reader, records, domain, rng) for records in (one, two)]
        except UserError:
            outcome.refused += 1
            continue
        outcome.compared += 1
        here, there = (Counter(row for row in some if row[0]) for some in rows)
        changed = max((here - there).total(), (there - here).total())
        if relation != "persons" and changed == 0:  # compare with each record read alone
            alone = Counter(
                _read(form, reader, [record], domain, rng)[0] for record in one if record.label != OWN
            )
            changed = (here - alone).total()
        if changed > outcome.changed:
            outcome.changed, outcome.example = changed, f"{relation}, case {number}"
    return outcome


def _neighbours(form: Form, relation: str, rng: Random) -> tuple[list[Record], list[Record]]:
    """All records, and the same with one record or person replaced or removed."""
    plain, odd = (_picture, _odd_picture) if form.images else (_vector, _odd_vector)
    names = rng.sample(range(100), N + 6)
    others = [
        Record(plain(rng), rng.choice(OTHERS), f"p{rng.randrange(3)}", f"{names[i]:03}") for i in range(N)
    ]
    first = Record(plain(rng), OWN, "x", f"{names[N]:03}")
    if relation == "persons":
        before = [Record(plain(rng), OWN, "x", f"{names[N + i]:03}") for i in range(rng.randrange(1, 4))]
        after = [Record(odd(rng), OWN, "y", f"{names[N + i]:03}") for i in range(rng.randrange(1, 4))]
        return _mixed(others, before, rng), _mixed(others, after, rng)
    strange = Record(odd(rng), OWN, "x", rng.choice([first.name, f"{names[N + 1]:03}"]))
    at = rng.randrange(N + 1)
    if relation == "add-remove":
        return [*others[:at], strange, *others[at:]], others
    return [*others[:at], first, *others[at:]], [*others[:at], strange, *others[at:]]


def _mixed(others: list[Record], own: list[Record], rng: Random) -> list[Record]:
    """Insert a person's records at random places among those of others."""
    places = sorted(rng.randrange(len(others) + 1) for _ in own)
    mixed = list(others)
    for record, place in zip(reversed(own), reversed(places), strict=True):
        mixed.insert(place, record)
    return mixed


def _read(form: Form, reader: Reader, records: list[Record], domain: TableDomain, rng: Random) -> Rows:
    with tempfile.TemporaryDirectory(prefix="adlm-audit-") as folder:
        try:
            path = form.write(Path(folder), records, rng)
        except (pa.ArrowException, TypeError) as error:  # a library refuses such a column
            raise UserError(str(error)) from None
        return reader(path, domain, rng)


def product_input_reading(cases: int, seed: int = 0) -> list[Finding]:
    """Search every form of images and vectors for a record that changes another."""
    return [
        finding(f"reading {name}", search_inputs(form, product, cases, seed)) for name, form in FORMS.items()
    ]


def images_brightened_together(runs: int, source: Source) -> Finding:
    """Control: pixels divided by the brightest of the folder, which depends on a single image."""
    del runs, source  # the search is exact, and draws no noise
    outcome = search_inputs(FORMS["folders of images"], brightened, 60)
    return finding("images scaled by the brightest of all", outcome, control=True)
