"""Images and vectors: one file is one record, in every form, and every mistake is one sentence."""

from __future__ import annotations

import csv
import io
import json
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray
from PIL import Image
from pyarrow import parquet

from adlm.data import images as image_files
from adlm.data.images import pixels_of, pixels_of_array
from adlm.data.reading import pieces_of, read_all, read_batches
from adlm.domain.columns import Column
from adlm.domain.table import TableDomain
from adlm.errors import UserError


def noise(*shape: int, seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def saved(image: Image.Image, kind: str = "PNG", **settings: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **settings)
    return stream.getvalue()


def ramp(width: int, height: int) -> NDArray[np.uint8]:
    """Grey that rises from left to right."""
    return np.tile(np.linspace(0, 255, width).round().astype(np.uint8), (height, 1))


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "BMP", "WEBP"])
def test_an_image_of_the_declared_size_and_colour_is_left_as_it_is(kind: str) -> None:
    colour, grey = noise(20, 30, 3), noise(20, 30)
    settings = {"lossless": True} if kind == "WEBP" else {}
    assert (
        pixels_of(saved(Image.fromarray(colour), kind, **settings), (3, 20, 30)) == colour.transpose(2, 0, 1)
    ).all()
    if kind != "WEBP":  # which has no grey
        assert (pixels_of(saved(Image.fromarray(grey), kind), (20, 30)) == grey).all()
        assert pixels_of(saved(Image.fromarray(grey), kind), (1, 20, 30)).shape == (1, 20, 30)


def test_a_file_on_disk_and_its_bytes_are_the_same_record(tmp_path: Path) -> None:
    data = saved(Image.fromarray(noise(50, 41, 3)), "JPEG")
    (tmp_path / "a.jpg").write_bytes(data)
    assert (pixels_of(tmp_path / "a.jpg", (3, 16, 16)) == pixels_of(data, (3, 16, 16))).all()


def test_grey_becomes_colour_by_repetition_and_colour_grey_by_its_luma() -> None:
    grey = noise(9, 9)
    found = pixels_of(saved(Image.fromarray(grey)), (3, 9, 9))
    assert (found == grey).all()
    red = np.zeros((9, 9, 3), np.uint8)
    red[..., 0] = 200
    assert (pixels_of(saved(Image.fromarray(red)), (9, 9)) == round(0.299 * 200)).all()


def test_sixteen_bits_are_cut_to_the_high_byte_in_every_format() -> None:
    grey = noise(12, 12)
    deep = grey.astype(np.uint16) * 256 + 77
    for kind in ("PNG", "TIFF"):
        assert (pixels_of(saved(Image.fromarray(deep), kind), (12, 12)) == grey).all()
    assert (pixels_of_array(deep, (12, 12), None) == grey).all()


def test_transparent_pixels_are_laid_on_white_and_opaque_ones_are_kept() -> None:
    colour = noise(8, 8, 4)
    colour[:4, :, 3], colour[4:, :, 3] = 0, 255
    found = pixels_of(saved(Image.fromarray(colour)), (3, 8, 8)).transpose(1, 2, 0)
    assert (found[:4] == 255).all()
    assert (found[4:] == colour[4:, :, :3]).all()
    with_alpha = np.stack([noise(8, 8), np.full((8, 8), 255, np.uint8)], 2)
    assert (pixels_of(saved(Image.fromarray(with_alpha, "LA")), (8, 8)) == with_alpha[..., 0]).all()
    palette = Image.fromarray(ramp(8, 8)).convert("P")
    palette.info["transparency"] = int(np.asarray(palette)[0, 0])
    assert (pixels_of(saved(palette), (8, 8))[:, 0] == 255).all()


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_rotation_is_applied(orientation: int) -> None:
    upright = np.zeros((24, 16), np.uint8)
    upright[:12, :8] = 255  # bright in the upper left corner
    turns = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}  # how a camera that was held so stores it
    image = Image.fromarray(upright)
    back = {
        0: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        1: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        2: Image.Transpose.ROTATE_90,
        6: Image.Transpose.TRANSVERSE,
        4: Image.Transpose.ROTATE_270,
    }
    if orientation > 1:
        image = image.transpose(back[turns[orientation]])
    exif = Image.Exif()
    exif[0x0112] = orientation
    assert (pixels_of(saved(image, "PNG", exif=exif), (24, 16)) == upright).all()


def test_each_fit_keeps_what_it_says() -> None:
    wide = saved(Image.fromarray(ramp(300, 100)))
    crop, pad, stretch = (pixels_of(wide, (20, 20), fit) for fit in ("crop", "pad", "stretch"))
    assert (pixels_of(wide, (20, 20)) == crop).all()
    assert 80 < crop[10, 0] < 95  # the left third is cut off
    assert 160 < crop[10, -1] < 175
    assert stretch[10, 0] < 10
    assert stretch[10, -1] > 245
    assert (pad[:6] == 0).all()
    assert (pad[-6:] == 0).all()
    assert pad[10, -1] > 240


def test_resizing_is_antialiased() -> None:
    """Stripes of one pixel become their mean, which sampling every eighth pixel would not give."""
    stripes = np.zeros((256, 256), np.uint8)
    stripes[:, ::2] = 255
    inside = pixels_of(saved(Image.fromarray(stripes)), (32, 32))[4:-4, 4:-4].astype(int)
    assert abs(inside - 127.5).max() < 4


def test_arrays_come_with_channels_first_or_last() -> None:
    colour = noise(40, 30, 3)
    first = pixels_of_array(colour.transpose(2, 0, 1), (3, 16, 16), None)
    assert (first == pixels_of_array(colour, (3, 16, 16), None)).all()
    assert (first == pixels_of(saved(Image.fromarray(colour)), (3, 16, 16))).all()
    for wrong, words in ((noise(4, 5, 6, 3), "shape"), (np.zeros((9, 9)), "integers")):
        with pytest.raises(UserError, match=words):
            pixels_of_array(wrong, (3, 16, 16), None)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "no image of a known format"),
        (b"GIF89a" + bytes(100), "no image of a known format"),
        (saved(Image.fromarray(noise(90, 90, 3)), "JPEG")[:500], "the image is broken"),
        (saved(Image.fromarray(noise(90, 90, 3)))[:900], "the image is broken"),
        (saved(Image.new("L", (1, 1))), "1 x 1 pixels; at least 2 a side"),
        (saved(Image.new("L", (900, 1))), "900 x 1 pixels"),
        (saved(Image.fromarray(np.ones((9, 9), np.float32)), "TIFF"), "32-bit numbers"),
        (saved(Image.new("1", (30000, 30000))), "more than 134217728 pixels"),
    ],
)
def test_what_is_no_picture_is_told_in_a_sentence(data: bytes, words: str) -> None:
    with pytest.raises(UserError, match=words):
        pixels_of(data, (3, 16, 16))


# ---- Files of images and vectors: every form gives the same records, and every mistake one sentence


CLASSES = ("cat", "dog", "fox")
N = 12
LABEL = Column("label", "label", classes=CLASSES)
PHOTOS = TableDomain((Column("image", "image", size=(6, 8), colour="rgb", family="natural"), LABEL))
VECTORS = TableDomain((Column("embedding", "vector", size=5, norm=2.0), LABEL))


def images(seed: int = 0) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (N, 6, 8, 3), dtype=np.uint8), rng.integers(0, 3, N)


def png(image: NDArray[np.uint8]) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(image).save(stream, "PNG")
    return stream.getvalue()


def class_folders(root: Path) -> Path:
    x, y = images()
    for i, (image, code) in enumerate(zip(x, y, strict=True)):
        folder = root / "photos" / CLASSES[code] / ("deeper" if i % 2 else "")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{i:04}.png").write_bytes(png(image))
    (root / "photos" / ".DS_Store").write_bytes(b"x")
    (root / "photos" / CLASSES[0] / "Thumbs.db").write_bytes(b"x")
    return root / "photos"


def csv_folder(root: Path) -> Path:
    x, y = images()
    folder = root / "listed"
    (folder / "files").mkdir(parents=True)
    with (folder / "metadata.csv").open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["image", "camera", "label"])
        for i, (image, code) in enumerate(zip(x, y, strict=True)):
            (folder / "files" / f"{i}.png").write_bytes(png(image))
            writer.writerow([f"files/{i}.png", "a", CLASSES[code]])
    return folder


def parquet_file(root: Path) -> Path:
    x, y = images()
    cells = [{"bytes": png(image), "path": f"{i}.png"} for i, image in enumerate(x)]
    table = pa.table({"image": cells, "label": y})
    about = {"info": {"features": {"label": {"names": list(CLASSES), "_type": "ClassLabel"}}}}
    table = table.replace_schema_metadata({"huggingface": json.dumps(about)})
    parquet.write_table(table, root / "photos.parquet", row_group_size=5)
    return root / "photos.parquet"


def plain_parquet(root: Path) -> Path:
    x, y = images()
    table = pa.table({"label": [CLASSES[c] for c in y], "image": [png(image) for image in x]})
    (root / "parts").mkdir()
    parquet.write_table(table.slice(0, 5), root / "parts" / "0.parquet")
    parquet.write_table(table.slice(5), root / "parts" / "1.parquet")
    return root / "parts"


def saved_dataset(root: Path) -> Path:
    x, y = images()
    folder = root / "saved"
    folder.mkdir()
    table = pa.table({"image": [{"bytes": png(image), "path": None} for image in x], "label": y})
    with (
        pa.OSFile(str(folder / "data-00000.arrow"), "wb") as sink,
        pa.ipc.new_stream(sink, table.schema) as w,
    ):
        w.write_table(table)
    state = {"_data_files": [{"filename": "data-00000.arrow"}], "_split": None}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text("{}")
    return folder


def npz_file(root: Path) -> Path:
    x, y = images()
    np.savez(root / "a.npz", image=x.transpose(0, 3, 1, 2), label=np.array(CLASSES)[y])
    return root / "a.npz"


def npy_folder(root: Path) -> Path:
    x, y = images()
    (root / "arrays").mkdir()
    np.save(root / "arrays" / "image.npy", x)
    np.save(root / "arrays" / "label.npy", y)
    return root / "arrays"


FORMS = [class_folders, csv_folder, parquet_file, plain_parquet, saved_dataset, npz_file, npy_folder]


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_records_in_the_same_order(
    form: Callable[[Path], Path], tmp_path: Path
) -> None:
    x, y = read_all(form(tmp_path), PHOTOS)
    expected, codes = images()
    assert (x == expected.transpose(0, 3, 1, 2)).all()
    assert (y == codes).all()


def test_what_a_library_saves_is_read_without_it(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    if not hasattr(datasets, "Dataset"):
        pytest.skip("the library `datasets` is not installed")
    x, y = images()
    made = datasets.Dataset.from_dict(
        {"image": [Image.fromarray(image) for image in x], "label": y.tolist()},
        features=datasets.Features(
            {"image": datasets.Image(), "label": datasets.ClassLabel(names=list(CLASSES))}
        ),
    )
    made.save_to_disk(tmp_path / "saved")
    found, codes = read_all(tmp_path / "saved", PHOTOS)
    assert (found == x.transpose(0, 3, 1, 2)).all()
    assert (codes == y).all()


def test_records_do_not_depend_on_the_batch(tmp_path: Path) -> None:
    folder = class_folders(tmp_path)
    whole = read_all(folder, PHOTOS)[0]
    for rows in (1, 5):
        assert (whole == np.concatenate([b.x for b in read_batches(folder, PHOTOS, rows=rows)])).all()


@pytest.mark.parametrize("form", [npz_file, npy_folder])
def test_entries_of_arrays_keep_their_numbers_in_any_piece(
    form: Callable[[Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_files, "GROUP_ROWS", 5)
    source = form(tmp_path)
    assert len(pieces_of(source, PHOTOS)) == 3
    batches = list(read_batches(source, PHOTOS, rows=2))
    names = [name for batch in batches for name in batch.names]
    assert [int(name.split()[-1]) for name in names] == list(range(1, N + 1))
    assert (np.concatenate([batch.x for batch in batches]) == images()[0].transpose(0, 3, 1, 2)).all()


def test_images_without_labels_are_read_from_anywhere(tmp_path: Path) -> None:
    folder = class_folders(tmp_path)
    batch = next(read_batches(folder, PHOTOS, labels=False))
    assert len(batch.x) == N
    assert len(batch.y) == 0
    one = next(read_batches(Path(batch.names[3]), PHOTOS, labels=False))
    assert (one.x[0] == batch.x[3]).all()


def vector_file(root: Path, kind: Any = None) -> tuple[Path, NDArray[np.float32]]:
    x = np.random.default_rng(0).normal(size=(N, 5)).astype(np.float32)
    column = pa.array([row.tolist() for row in x], type=kind or pa.list_(pa.float64()))
    parquet.write_table(
        pa.table(
            {
                "embedding": column,
                "label": [CLASSES[i % 3] for i in range(N)],
                "who": [i // 4 for i in range(N)],
            }
        ),
        root / "v.parquet",
    )
    return root / "v.parquet", x


@pytest.mark.parametrize(
    "kind", [None, pa.list_(pa.float32()), pa.list_(pa.float32(), 5), pa.large_list(pa.float64())]
)
def test_vectors_come_from_columns_of_lists(kind: Any, tmp_path: Path) -> None:
    file, x = vector_file(tmp_path, kind)
    found, codes = read_all(file, VECTORS)
    assert found.dtype == np.float32
    assert (found == x).all()
    assert (codes == np.arange(N) % 3).all()


def test_a_person_keeps_the_declared_number_of_records(tmp_path: Path) -> None:
    file, x = vector_file(tmp_path)
    bounded = TableDomain((*VECTORS.columns, Column("who", "person", records=2)))
    found, _ = read_all(file, bounded)
    assert len(found) == 6
    whose = [int(np.flatnonzero((x == row).all(1))[0]) // 4 for row in found]
    assert sorted(whose) == [0, 0, 1, 1, 2, 2]
    assert len(read_all(file, bounded, bounded=False)[0]) == N


def test_which_records_of_a_person_are_kept_depends_on_that_person_alone(tmp_path: Path) -> None:
    """Shuffled, in two files, and without the other persons: the same records of a person."""
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(40, 5)).astype(np.float32), rng.integers(0, 3, 40)
    who = rng.integers(0, 6, 40)
    bounded = TableDomain((*VECTORS.columns, Column("who", "person", records=2)))

    def kept(name: str, *parts: Any) -> set[bytes]:
        (tmp_path / name).mkdir()
        for at, rows in enumerate(parts):
            columns = {
                "embedding": pa.array(x[rows].tolist()),
                "label": [LABEL.classes[code] for code in y[rows]],
                "who": [f"p{person}" for person in who[rows]],
            }
            parquet.write_table(pa.table(columns), tmp_path / name / f"{at}.parquet")
        found, codes = read_all(tmp_path / name, bounded)
        return {row.tobytes() + bytes([code]) for row, code in zip(found, codes.tolist(), strict=True)}

    order = rng.permutation(40)
    whole = kept("whole", np.arange(40))
    assert len(whole) == sum(min(2, int((who == person).sum())) for person in set(who.tolist()))
    assert kept("shuffled", order) == whole
    assert kept("files", order[:13], order[13:]) == whole
    own = np.flatnonzero(who == who[0])
    mine = {x[at].tobytes() + bytes([y[at]]) for at in own}
    assert kept("alone", own) == whole & mine


def test_a_record_without_a_person_is_told(tmp_path: Path) -> None:
    table = pa.table({"embedding": [[0.0] * 5] * 2, "label": ["cat", "dog"], "who": ["p", None]})
    parquet.write_table(table, tmp_path / "v.parquet")
    bounded = TableDomain((*VECTORS.columns, Column("who", "person", records=2)))
    with pytest.raises(UserError, match="row 2: the person is not named"):
        read_all(tmp_path / "v.parquet", bounded)


def test_vectors_that_do_not_fit_are_told_with_their_row(tmp_path: Path) -> None:
    for bad, words in (
        ([1.0] * 4, "row 2: a vector must have 5 numbers"),
        ([1.0, float("nan"), 0, 0, 0], "row 2: a vector must hold finite"),
        (None, "row 2: the column 'embedding' is empty"),
    ):
        table = pa.table({"embedding": pa.array([[0.0] * 5, bad]), "label": ["cat", "dog"]})
        parquet.write_table(table, tmp_path / "bad.parquet")
        with pytest.raises(UserError, match=words):
            read_all(tmp_path / "bad.parquet", VECTORS)


def broken(folder: Path) -> None:
    next((folder / "cat").rglob("*.png")).write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(40))


def one_pixel(folder: Path) -> None:
    (folder / "cat" / "dot.png").write_bytes(png(np.zeros((1, 1, 3), np.uint8)))


def unknown(folder: Path) -> None:
    (folder / "cow").mkdir()
    (folder / "cow" / "1.png").write_bytes(png(np.zeros((6, 8, 3), np.uint8)))


def in_case(folder: Path) -> None:
    (folder / "Cat").mkdir()


def stray(folder: Path) -> None:
    (folder / "cat" / "notes.txt").write_text("x")


def loose(folder: Path) -> None:
    (folder / "loose.png").write_bytes(png(np.zeros((6, 8, 3), np.uint8)))


def linked_folder(folder: Path) -> None:
    (folder / "cat" / "up").symlink_to("..")


def linked_loop(folder: Path) -> None:
    (folder / "cat" / "a.png").symlink_to("b.png")
    (folder / "cat" / "b.png").symlink_to("a.png")


def lost_link(folder: Path) -> None:
    (folder / "me").symlink_to("me")


def no_bytes(folder: Path) -> None:
    next((folder / "cat").rglob("*.png")).write_bytes(b"")


def bomb(folder: Path) -> None:
    """Write a file of 90 bytes that says that it is 60,000 pixels a side."""
    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(b"")), (b"IEND", b"")]
    parts = [
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    ]
    next((folder / "cat").rglob("*.png")).write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(parts))


def empty(folder: Path) -> None:
    for file in list(folder.rglob("*.png")):
        file.unlink()


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (broken, r"cat.*\.png: .*(broken|known format)"),
        (one_pixel, r"dot\.png: the image is 1 x 1 pixels"),
        (unknown, "subfolder 'cow': unknown label 'cow'; the domain's classes are cat, dog, fox"),
        (in_case, "'Cat' and 'cat' differ in case alone"),
        (stray, r"notes\.txt is not an image by its name"),
        (loose, "loose.png is not in a subfolder"),
        (linked_folder, "up is a link to a folder, which is not followed"),
        (linked_loop, r"a\.png: .*symbolic links"),
        (lost_link, "me is a broken link"),
        (no_bytes, r"cat.*\.png: it is no image of a known format"),
        (bomb, "the image has more than 134217728 pixels"),
        (empty, "holds no images; put them into one subfolder for each class"),
    ],
)
def test_a_spoilt_folder_is_told_in_a_sentence(
    spoil: Callable[[Path], None], words: str, tmp_path: Path
) -> None:
    folder = class_folders(tmp_path)
    spoil(folder)
    with pytest.raises(UserError, match=words):
        read_all(folder, PHOTOS)


def test_a_csv_file_names_files_of_its_folder_alone(tmp_path: Path) -> None:
    folder = csv_folder(tmp_path)
    (tmp_path / "secret.png").write_bytes(png(np.zeros((6, 8, 3), np.uint8)))
    for cells, words in (
        ("../secret.png,a,cat", "row 1: an image must lie below"),
        ("files/0.png,a,cow", "row 1.*unknown label 'cow'"),
        ("files/0.png,a,", "row 1.*unknown label ''"),
        ("gone.png,a,cat", "row 1.*there is no such file"),
        ("", "row 1 is empty; remove the line"),
    ):
        (folder / "metadata.csv").write_text(f"image,camera,label\n{cells}\n")
        with pytest.raises(UserError, match=words):
            read_all(folder, PHOTOS)


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ([0, 3], "row 2: unknown label 3"),
        ([0, None], "row 2: the label is missing"),
        (["cat", "Cat"], "'Cat'"),
    ],
)
def test_labels_of_a_parquet_file_are_names_or_codes(labels: list[Any], words: str, tmp_path: Path) -> None:
    table = pa.table({"embedding": [[0.0] * 5] * 2, "label": labels})
    parquet.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(UserError, match=words):
        read_all(tmp_path / "a.parquet", VECTORS)


def test_what_is_not_there_or_of_another_kind_is_told(tmp_path: Path) -> None:
    file, _ = vector_file(tmp_path)
    (tmp_path / "a.txt").write_text("x")
    (tmp_path / "cut.parquet").write_bytes(file.read_bytes()[:200])
    (tmp_path / "cut.npz").write_bytes(b"PK")
    np.savez(tmp_path / "half.npz", image=images()[0])
    (tmp_path / "splits").mkdir()
    (tmp_path / "splits" / "dataset_dict.json").write_text("{}")
    for path, domain, words in (
        ("none", PHOTOS, "there is no file or folder"),
        ("a.txt", PHOTOS, "is not a file of images with labels"),
        ("a.txt", VECTORS, "is not a file of vectors with labels"),
        ("cut.parquet", VECTORS, "not a whole Parquet or Arrow file"),
        ("cut.npz", PHOTOS, "not a whole .npz file"),
        ("half.npz", PHOTOS, "has no array 'label'; it has image"),
        ("v.parquet", PHOTOS, "has no column 'image'"),
        ("splits", PHOTOS, "several splits"),
    ):
        with pytest.raises(UserError, match=words):
            read_all(tmp_path / path, domain)
