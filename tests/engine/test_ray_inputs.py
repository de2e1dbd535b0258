"""Statements about files of images and vectors on a cluster: workers read them, the bytes are the same."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray
from PIL import Image
from pyarrow import parquet

from adlm.data import datasets
from adlm.data import images as input_pieces
from adlm.data.images import input_batches, read_inputs
from adlm.domain.columns import Column
from adlm.domain.table import ImageInput, InputDomain, VectorInput
from adlm.engine import Engine
from adlm.errors import UserError
from adlm.mechanism.privatise import privatise
from adlm.privacy.ledger import Ledger

pytest.importorskip("ray", reason="Ray is not installed (pip install 'adlm[ray]')")
pytestmark = pytest.mark.filterwarnings("ignore")

LABEL = Column("digit", "label", classes=tuple("0123456789"))
DIGITS = InputDomain(ImageInput("image", (8, 8), "grey", "drawn"), LABEL)
PERSONS = InputDomain(DIGITS.input, LABEL, Column("who", "person", records=2))
VECTORS = InputDomain(VectorInput("image", 64, 4.0), LABEL)
COUNT = 300


def digits() -> tuple[NDArray[np.uint8], NDArray[Any]]:
    train = datasets.load("digits", "train")
    return (np.asarray(train.x[:COUNT]) * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8), train.y[:COUNT]


def png(pixels: NDArray[np.uint8]) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for each class; a Parquet file and a list of the same images, with persons, beside it."""
    made = tmp_path_factory.mktemp("photos")
    x, y = digits()
    for at, (pixels, digit) in enumerate(zip(x, y, strict=True)):
        folder = made / "folders" / str(digit)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{at:04d}.png").write_bytes(png(pixels))
    who = [f"p{at % 90}" for at in range(COUNT)]
    columns = {"digit": [str(digit) for digit in y], "who": who}
    images = pa.table({"image": [png(pixels) for pixels in x], **columns})
    parquet.write_table(images, made / "images.parquet", row_group_size=70)
    vectors = pa.table({"image": list(x.reshape(COUNT, -1) / 255.0), **columns})
    parquet.write_table(vectors, made / "vectors.parquet", row_group_size=64)
    rows = [
        f"{digit}/{at:04d}.png,{digit},{name}" for at, (digit, name) in enumerate(zip(y, who, strict=True))
    ]
    (made / "folders" / "list.csv").write_text("\n".join(["image,digit,who", *rows]) + "\n")
    return made


@pytest.mark.parametrize(
    ("name", "declared"),
    [
        ("folders/list.csv", DIGITS),
        ("images.parquet", DIGITS),
        ("vectors.parquet", VECTORS),
    ],
    ids=["list", "parquet", "vectors"],
)
def test_files_that_workers_read_give_the_bytes_of_one_machine(
    cluster: Engine, photos: Path, name: str, declared: InputDomain, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(input_pieces, "FILES", 64)
    monkeypatch.setattr(input_pieces, "GROUP_ROWS", 100)
    given: dict[str, Any] = {"domain": declared, "epsilon": 2, "delta": "1e-5", "seed": 1, "size": COUNT}
    one = privatise(photos / name, **given)
    with monkeypatch.context() as driver:  # which decodes nothing itself
        driver.setattr(sys.modules[privatise.__module__], "read_inputs", None)
        two = privatise(photos / name, engine=cluster, **given)
    assert one.certificate.digest == two.certificate.digest
    assert one.certificate.to_dict() == two.certificate.to_dict()


def test_pieces_hold_the_records_that_one_machine_reads_in_their_order(
    photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(input_pieces, "FILES", 64)
    monkeypatch.setattr(input_pieces, "GROUP_ROWS", 100)
    for name, declared in (("images.parquet", DIGITS), ("folders", DIGITS), ("vectors.parquet", VECTORS)):
        whole, codes = read_inputs(photos / name, declared)
        found = input_pieces.input_pieces(photos / name, declared)
        assert found is not None
        assert len(found.pieces) > 2
        assert len(found) == len(whole)
        batches = [b for p in found.pieces for b in input_pieces.batches_of(p, declared, 33)]
        assert np.array_equal(np.concatenate([batch.x for batch in batches]), whole)
        assert np.array_equal(np.concatenate([batch.y for batch in batches]), codes)
        assert input_pieces.input_pieces(photos / name, PERSONS) is None  # the driver bounds persons
        names = [name for batch in input_batches(photos / name, declared) for name in batch.names]
        assert [name for batch in batches for name in batch.names] == names


def test_a_broken_image_on_a_worker_is_named_and_costs_nothing(
    cluster: Engine, photos: Path, tmp_path: Path
) -> None:
    images = parquet.read_table(photos / "images.parquet").to_pydict()
    images["image"][123] = images["image"][123][:40]
    parquet.write_table(pa.table(images), tmp_path / "images.parquet", row_group_size=70)
    ledger = Ledger()
    with pytest.raises(UserError, match=r"images\.parquet, row 124: ") as told:
        privatise(tmp_path / "images.parquet", domain=DIGITS, epsilon=1, ledger=ledger, engine=cluster)
    assert "\n" not in str(told.value)
    assert not ledger.charges
