"""Files of images and vectors are released as arrays are, for persons too, and mistakes cost nothing."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pyarrow as pa
import pytest
import torch
from onnx import TensorProto, helper
from PIL import Image
from pyarrow import parquet
from torch import nn
from typer.testing import CliRunner

from adlm import Ledger, Model, UserError, fit, privatise
from adlm.data import datasets
from adlm.domain.table import TableDomain
from adlm.features import OnnxBackbone, load_backbone, provenance_of
from adlm.features.encoders import Normalised

CLASSES = ("blue", "red")
DOMAIN = """
[columns.image]
kind = "image"
size = 16
colour = "rgb"
family = "generic"
[columns.label]
kind = "label"
classes = ["blue", "red"]
"""


def run(*words: str, code: int = 0) -> Any:
    """Run a command; what it printed as JSON, or its sentence."""
    from adlm.cli.app import app

    found = CliRunner().invoke(app, [*words, "--json"] if code == 0 else list(words))
    if code == 0:
        assert found.exit_code == 0, (words, found.output, found.exception)
        return json.loads(found.stdout)
    assert isinstance(found.exception, UserError), (words, found.output)
    return str(found.exception)


def folder(root: Path, name: str = "photos", n: int = 240, seed: int = 0) -> Path:
    """Noisy pictures that are bluish or reddish, of mixed sizes."""
    rng = np.random.default_rng(seed)
    for i in range(n):
        code = i % 2
        size = rng.integers(17, 40, 2)
        pixels = rng.integers(0, 160, (*size, 3))
        pixels[..., 2 - 2 * code] += 60
        place = root / name / CLASSES[code]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.astype(np.uint8)).save(place / f"{i:04}.png")
    return root / name


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ADLM_LEDGERS", str(tmp_path / "ledgers"))
    (tmp_path / "photos.toml").write_text(DOMAIN)
    return tmp_path


def encoder(path: Path, side: int = 16, seed: int = 0, *, batch_statistics: bool = False) -> Path:
    """A small ONNX encoder: mean colours of a grid, mixed at random."""
    torch.manual_seed(seed)
    module = nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(48, 20), nn.Tanh()).eval()
    axes = {"pixels": {0: "n"}, "z": {0: "n"}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module,
            (torch.rand(2, 3, side, side),),
            str(path),
            dynamo=False,
            input_names=["pixels"],
            output_names=["z"],
            dynamic_axes=axes,
        )
    model = onnx.load(str(path))
    if batch_statistics:  # take the largest number of the batch off
        model.graph.node.append(helper.make_node("ReduceMax", ["z"], ["most"], keepdims=0))
        model.graph.node.append(helper.make_node("Sub", ["z", "most"], ["coupled"]))
        del model.graph.output[:]
        model.graph.output.append(helper.make_tensor_value_info("coupled", TensorProto.FLOAT, ["n", 20]))
    onnx.save(model, str(path))
    return path


def test_a_folder_of_png_files_has_the_digest_of_the_arrays_it_was_written_from(tmp_path: Path) -> None:
    known = datasets.domain("cifar10")
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (40, 3, 32, 32), dtype=np.uint8), rng.integers(0, 10, 40)
    for i, (pixels, code) in enumerate(zip(x, y, strict=True)):
        below = tmp_path / "cifar10" / known.classes[code]
        below.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.transpose(1, 2, 0)).save(below / f"{i:05}.png")
    declared = TableDomain.of_domain(known)
    one = privatise(x, y, domain=known, epsilon=2, delta="1e-5", seed=3)
    two = privatise(tmp_path / "cifar10", domain=declared, epsilon=2, delta="1e-5", seed=3)
    assert one.certificate.digest == two.certificate.digest


def test_the_whole_way_by_command(place: Path) -> None:
    folder(place)
    folder(place, "held-out", 60, 1)
    (place / "photos.toml").unlink()
    assert run("domain", "init", "photos", "--family", "generic", "--size", "16")["columns"] == [
        "image",
        "label",
    ]
    assert run("domain", "check", "photos.toml", "photos")["classes"] == {"blue": 120, "red": 120}
    plans = run("plan", "--domain", "photos.toml", "--size", "240", "--epsilon", "8", "--delta", "1e-5")
    assert plans["features"]["name"] == "identity"
    budget = ("--epsilon", "8", "--delta", "1e-5")
    assert run("release", "photos", "--domain", "photos.toml", *budget, "--out", "R")["n"] == 240
    run("train", "R", "--out", "M")
    assert run("evaluate", "M", "held-out")["accuracy"] > 0.8
    assert run("predict", "M", "held-out", "--out", "p.csv")["records"] == 60
    assert run("predict", "M", "held-out/red/0001.png", "--out", "one.csv")["records"] == 1
    run("export", "M", "--out", "m.onnx")
    run("report", "M", "--out", "r.html")
    assert run("verify", "R")["epsilon_proved"] <= 8
    run(
        "release-records",
        "photos",
        "--domain",
        "photos.toml",
        "--epsilon",
        "8",
        "--allocation",
        "identical",
        "--network",
        "mlp",
        "--batch-size",
        "40",
        "--out",
        "K",
    )


def test_a_draft_reads_names_alone(place: Path) -> None:
    folder(place, n=4)
    (place / "photos" / "red" / "broken.png").write_bytes(b"x")
    run("domain", "init", "photos", "--out", "draft.toml")
    text = (place / "draft.toml").read_text()
    assert 'classes = ["blue", "red"]' in text
    assert "# family = " in text
    for use in ("pen strokes", "photographs"):
        assert use in text
    assert "are for tables" in run("domain", "init", "photos", "--peek", "--out", "x.toml", code=2)


@pytest.mark.parametrize("spoilt", ["broken", "pixel", "class", "case", "empty", "auto"])
def test_a_mistake_is_one_sentence_and_charges_nothing(spoilt: str, place: Path) -> None:
    photos = folder(place, n=20)
    pixel = Image.new("RGB", (1, 1))
    words = {
        "broken": "zzz.png: ",
        "pixel": "1 x 1 pixels",
        "class": "unknown label 'green'",
        "case": "differ in case",
        "empty": "holds no images",
        "auto": "'auto'",
    }[spoilt]
    if spoilt == "broken":
        (photos / "red" / "zzz.png").write_bytes((photos / "red" / "0001.png").read_bytes()[:300])
    elif spoilt == "pixel":
        pixel.save(photos / "red" / "zzz.png")
    elif spoilt in ("class", "case"):
        other = photos / ("green" if spoilt == "class" else "Red")
        other.mkdir()
        pixel.save(other / "1.png")
    elif spoilt == "empty":
        for file in list(photos.rglob("*.png")):
            file.unlink()
    else:
        (place / "photos.toml").write_text(DOMAIN.replace('"generic"', '"auto"'))
    told = run("release", "photos", "--domain", "photos.toml", "--out", "R", "--ledger", "L.jsonl", code=2)
    assert words in told
    assert "\n" not in told
    assert not (place / "R").exists()
    assert not (place / "L.jsonl").exists() or Ledger(place / "L.jsonl").charges == ()


def vectors(root: Path, n: int = 400) -> Path:
    """Vectors of two classes, four of each person; one vector is far too long."""
    rng = np.random.default_rng(0)
    codes = np.arange(n) // 4 % 2
    x = rng.normal(0, 0.2, (n, 6)) + np.where(codes, 0.3, -0.3)[:, None]
    x[5] *= 1000
    table = pa.table(
        {
            "embedding": x.tolist(),
            "label": np.array(CLASSES)[codes].tolist(),
            "who": [f"p{i // 4}" for i in range(n)],
        }
    )
    parquet.write_table(table, root / "v.parquet")
    return root / "v.parquet"


VECTORS = """
[columns.embedding]
kind = "vector"
size = 6
norm = 1.0
[columns.label]
kind = "label"
classes = ["blue", "red"]
"""


def test_vectors_go_the_whole_way(place: Path) -> None:
    vectors(place)
    run("domain", "init", "v.parquet", "--out", "drafted.toml")
    assert 'kind = "vector"' in (place / "drafted.toml").read_text()
    (place / "v.toml").write_text(VECTORS)
    run("release", "v.parquet", "--domain", "v.toml", "--epsilon", "2", "--delta", "1e-5", "--out", "R")
    run("train", "R", "--out", "M")
    assert run("evaluate", "M", "v.parquet")["accuracy"] > 0.9
    assert run("predict", "M", "v.parquet", "--out", "p.csv")["records"] == 400
    run("export", "M", "--out", "m.onnx")


def test_a_persons_records_are_bounded_and_cost_as_many(place: Path) -> None:
    file = vectors(place)
    person = '[columns.who]\nkind = "person"\nrecords = 2\n'
    (place / "v.toml").write_text(VECTORS + person)
    budget = ("--epsilon", "2", "--delta", "1e-5")
    told = run("release", "v.parquet", "--domain", "v.toml", *budget, "--out", "R", code=2)
    assert "the number of records is private" in told
    made = run("release", "v.parquet", "--domain", "v.toml", *budget, "--size", "200", "--out", "R")
    assert made["n"] is None
    one, two = (
        privatise(file, domain=TableDomain.from_toml(VECTORS + text), epsilon=20, seed=0, size=200)
        for text in (person.replace("2", "1"), person)
    )
    for release, records in ((one, 1), (two, 2)):
        assert release.certificate.settings["contributions"] == records
        counts = release.tensors["class_sums"][:, 0].double() * release.tensors["step"][0]
        assert counts.sum() == pytest.approx(100 * records, abs=60)
    assert two.certificate.settings["sd_sums"] == pytest.approx(
        2 * one.certificate.settings["sd_sums"], rel=0.01
    )


def test_an_encoder_in_an_onnx_file_goes_the_whole_way(place: Path) -> None:
    folder(place)
    folder(place, "held-out", 60, 1)
    encoder(place / "e.onnx")
    encoder(place / "other.onnx", seed=1)
    told = run("release", "photos", "--domain", "photos.toml", "--backbone", "e.onnx", "--out", "R", code=2)
    assert "needs --provenance" in told
    declared = ("--provenance", "public", "--trained-on", "random numbers")
    run(
        "release",
        "photos",
        "--domain",
        "photos.toml",
        "--epsilon",
        "8",
        "--delta",
        "1e-5",
        "--backbone",
        "e.onnx",
        *declared,
        "--out",
        "R",
    )
    entry = json.loads((place / "R" / "certificate.json").read_text())["features"]
    spec = entry["spec"].get("of", entry["spec"])
    assert spec["sha256"] == OnnxBackbone(place / "e.onnx", (3, 16, 16), provenance="public").sha256
    assert (entry["provenance"], entry["trained_on"]) == ("public", "random numbers")
    assert "give it again" in run("train", "R", "--out", "M", code=2)
    assert "not those that the release was made with" in run(
        "train", "R", "--backbone", "other.onnx", "--out", "M", code=2
    )
    run("train", "R", "--backbone", "e.onnx", "--out", "M")
    assert run("evaluate", "M", "held-out", "--backbone", "e.onnx")["accuracy"] > 0.8
    run("predict", "M", "held-out", "--backbone", "e.onnx", "--out", "p.csv")
    run("report", "M", "--out", "r.html")
    report = (place / "r.html").read_text()
    assert "random numbers" in report
    assert "declared public" in report
    run("export", "M", "--backbone", "e.onnx", "--out", "m.onnx")
    assert run("verify", "m.onnx")["epsilon_proved"] <= 8
    session = pytest.importorskip("onnxruntime").InferenceSession(str(place / "m.onnx"))
    x = np.random.default_rng(2).integers(0, 256, (5, 3, 16, 16)).astype(np.float32)
    model = Model.load(
        place / "M",
        features=load_backbone("e.onnx", (3, 16, 16), provenance="public", trained_on="random numbers"),
    )
    assert np.allclose(session.run(["probabilities"], {"records": x})[0], model.probabilities(x), atol=1e-5)


def test_a_private_encoder_leaves_nothing_proved(place: Path) -> None:
    folder(place, n=20)
    encoder(place / "e.onnx")
    made = run(
        "release",
        "photos",
        "--domain",
        "photos.toml",
        "--backbone",
        "e.onnx",
        "--provenance",
        "private",
        "--out",
        "R",
    )
    assert made["epsilon_proved"] is None
    assert any("not public" in stamp for stamp in made["stamps"])


def test_an_encoder_that_lets_records_meet_is_refused_before_a_record_is_read(place: Path) -> None:
    folder(place, n=20)
    encoder(place / "e.onnx", batch_statistics=True)
    told = run(
        "release",
        "photos",
        "--domain",
        "photos.toml",
        "--backbone",
        "e.onnx",
        "--provenance",
        "public",
        "--out",
        "R",
        "--ledger",
        "L.jsonl",
        code=2,
    )
    assert "depends on the other records of its batch" in told


@pytest.mark.parametrize(
    ("name", "side", "words"),
    [
        ("none.onnx", 16, "cannot be read"),
        ("text.onnx", 16, "not an ONNX file"),
        ("e.onnx", 20, "takes records of shape 3 x 16 x 16, and these are declared to have 3 x 20 x 20"),
        ("model.pt", 16, "a backbone is FILE.onnx, timm:NAME, or a folder"),
        ("timm:resnet18", 16, "timm"),
        ("folder", 16, "transformers|not a folder of an image encoder"),
    ],
)
def test_what_is_no_encoder_is_told_in_a_sentence(name: str, side: int, words: str, place: Path) -> None:
    encoder(place / "e.onnx")
    fixed = onnx.load(str(place / "e.onnx"))
    for at, size in ((2, 16), (3, 16)):
        fixed.graph.input[0].type.tensor_type.shape.dim[at].dim_value = size
    onnx.save(fixed, str(place / "e.onnx"))
    (place / "text.onnx").write_text("x")
    (place / "folder").mkdir()
    with pytest.raises(UserError, match=words):
        load_backbone(
            str(name if name.startswith("timm") else place / name), (3, side, side), provenance="public"
        )


def test_an_encoder_normalises_by_its_metadata_and_survives_a_copy(tmp_path: Path) -> None:
    import copy
    import pickle

    file = encoder(tmp_path / "e.onnx")
    plain = OnnxBackbone(file, (3, 16, 16), provenance="public")
    model = onnx.load(str(file))
    helper.set_model_props(model, {"image_mean": "[0.5, 0.4, 0.3]", "image_std": "[0.2, 0.2, 0.2]"})
    onnx.save(model, str(tmp_path / "n.onnx"))
    normalised = OnnxBackbone(tmp_path / "n.onnx", (3, 16, 16), provenance="public")
    x = torch.rand(4, 3, 16, 16)
    moved = x * 0.2 + torch.tensor([0.5, 0.4, 0.3])[:, None, None]
    assert torch.allclose(normalised(moved), plain(x), atol=1e-5)
    assert normalised.fingerprint() != plain.fingerprint()
    for again in (copy.deepcopy(plain), pickle.loads(pickle.dumps(plain))):
        assert torch.equal(again(x), plain(x))
        assert again.fingerprint() == plain.fingerprint()
    assert provenance_of(plain, (3, 16, 16)) == "public"
    release = privatise(
        np.random.default_rng(0).integers(0, 256, (30, 3, 16, 16)),
        np.arange(30) % 2,
        domain=TableDomain.from_toml(DOMAIN).domain,
        epsilon=1,
        seed=0,
        features=plain,
    )
    assert fit(release, features=plain).probabilities(np.zeros((1, 3, 16, 16))).shape == (1, 2)


@pytest.mark.parametrize(("shape", "axes"), [((2, 5, 4), (1,)), ((2, 4, 3, 3), (2, 3))])
def test_an_encoder_without_a_pooler_is_averaged_over_places(
    shape: tuple[int, ...], axes: tuple[int, ...]
) -> None:
    """Tokens come as (n, tokens, k), maps as (n, k, h, w); the features are k numbers."""
    hidden = torch.rand(shape)

    class Encoder(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> SimpleNamespace:
            return SimpleNamespace(last_hidden_state=hidden, pooler_output=None)

    found = Normalised(Encoder(), [0.5] * 3, [0.5] * 3)(torch.rand(2, 3, 8, 8))
    torch.testing.assert_close(found, hidden.mean(axes))


def test_a_library_that_lacks_what_it_needs_is_not_called_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "timm.py").write_text("import torchvision_that_is_not_there\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    with pytest.raises(
        UserError, match=r"timm, which is installed but cannot be imported .*torchvision_that"
    ):
        load_backbone("timm:resnet18", (3, 16, 16), provenance="public")


def test_a_folder_that_transformers_saved_is_an_encoder(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    settings = transformers.ViTConfig(
        hidden_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        image_size=16,
        patch_size=8,
    )
    transformers.ViTModel(settings).save_pretrained(tmp_path / "vit")
    with pytest.raises(UserError, match="not a folder of an image encoder"):
        load_backbone(tmp_path / "vit", (3, 16, 16), provenance="public")
    mean = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.2, 0.2, 0.2]}
    (tmp_path / "vit" / "preprocessor_config.json").write_text(json.dumps(mean))
    with pytest.raises(UserError, match="takes colour images"):
        load_backbone(tmp_path / "vit", (16, 16), provenance="public")
    features = load_backbone(tmp_path / "vit", (3, 16, 16), provenance="public", trained_on="nothing")
    assert features.width == 24
    assert features.spec()["encoder"] == "vit"
    assert provenance_of(features, (3, 16, 16)) == "public"
    again = load_backbone(tmp_path / "vit", (3, 16, 16), provenance="public")
    assert again.fingerprint() == features.fingerprint()
