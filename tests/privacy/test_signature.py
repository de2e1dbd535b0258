"""Signatures say who answers for an artefact; without one, a certificate proves arithmetic and integrity."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import nn

from adlm import Model, Release, TrainingConfig, UserError, fit, privatise
from adlm.data import datasets
from adlm.export.onnx import export_onnx
from adlm.export.verification import verify
from adlm.paper.relevance import RelevanceNetwork, make_public
from adlm.privacy.certificate import SEEDED
from adlm.privacy.folders import CERTIFICATE, TENSORS
from adlm.privacy.signature import (
    FILE,
    OF_RELEASE,
    Signature,
    Statement,
    fingerprint,
    load_key,
    load_public,
    new_key,
    sign,
)
from adlm.runtime.artefact import canonical, sha256

TRAIN = datasets.load("digits", "train")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Ed25519PrivateKey, Ed25519PublicKey]:
    folder = tmp_path_factory.mktemp("keys")
    new_key(folder / "k")
    return load_key(folder / "k"), load_public(folder / "k.pub")


Keys = tuple[Ed25519PrivateKey, Ed25519PublicKey]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, keys: Keys) -> Path:
    """A release, a model and an ONNX file, all signed; and the same of a far larger epsilon."""
    folder = tmp_path_factory.mktemp("made")
    for name, epsilon in (("", "1/100"), ("-open", "100")):
        release = privatise(TRAIN.x, TRAIN.y, domain=TRAIN.domain, epsilon=epsilon, k=8).signed(keys[0])
        release.save(folder / f"R{name}")
        fit(release).save(folder / f"M{name}", key=keys[0])
        export_onnx(Model.load(folder / f"M{name}"), folder / f"m{name}.onnx", key=keys[0])
    return folder


@pytest.fixture
def copy(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "c")
    return tmp_path / "c"


def rewritten(path: Path, **changes: object) -> None:
    """Change a canonical file and make its digest again, as anybody can."""
    raw = json.loads(path.read_bytes())
    body = {key: value for key, value in (raw | changes).items() if key != "digest"}
    path.write_bytes(canonical(body | {"digest": sha256(canonical(body))}))


def without_header(path: Path) -> None:
    """Write tensors again without what the file says of its privacy, as anybody can."""
    tensors = load_tensors(path.read_bytes())
    path.write_bytes(save_tensors({name: tensors[name] for name in sorted(tensors)}))


@pytest.mark.parametrize("name", ["R", "M", "m.onnx"])
def test_what_was_signed_is_verified(name: str, made: Path, keys: Keys) -> None:
    found = verify(made / name, [keys[1]])
    assert found.trusted
    assert found.certificate.totals.epsilon_proved <= Fraction(1, 100)
    said = " ".join(found.sentences())
    assert fingerprint(keys[1]) in said
    assert "not proved: that noise was drawn" in said
    assert "its origin" not in said
    unasked = verify(made / name)
    assert not unasked.trusted
    assert "not proved: its origin" in " ".join(unasked.sentences())


@pytest.mark.parametrize("name", ["R", "M", "m.onnx"])
def test_a_key_that_was_not_given_is_not_trusted(name: str, made: Path) -> None:
    with pytest.raises(UserError, match="none of the keys that were given"):
        verify(made / name, [Ed25519PrivateKey.generate().public_key()])


def test_a_certificate_with_its_digest_made_again_passes_unsigned_and_fails_signed(
    copy: Path, keys: Keys
) -> None:
    raw = json.loads((copy / "R" / CERTIFICATE).read_bytes())
    charges = [c | {"scale": str(Fraction(c["scale"]) * 100)} for c in raw["charges"]]
    for charge in charges:
        exact = Fraction(charge["sensitivity"]) / Fraction(charge["scale"])
        charge["epsilon_proved"] = f"{-(-exact.numerator * 10**6 // exact.denominator) / 10**6:.6f}".rstrip(
            "0"
        )
    total = sum(Fraction(c["sensitivity"]) / Fraction(c["scale"]) for c in charges)
    better = -(-total.numerator * 10**6 // total.denominator) / 10**6
    totals = raw["totals"] | {"epsilon_claimed": better, "epsilon_proved": better}
    rewritten(copy / "R" / CERTIFICATE, charges=charges, totals=totals)
    with pytest.raises(UserError, match="is that of another artefact"):
        verify(copy / "R")
    (copy / "R" / FILE).unlink()
    with pytest.raises(UserError, match=r"the header of .* was altered: epsilon"):
        verify(copy / "R")
    without_header(copy / "R" / TENSORS)
    assert (
        float(verify(copy / "R").certificate.totals.epsilon_proved) < 0.0002
    )  # arithmetic says nothing of origin
    with pytest.raises(UserError, match="is not signed"):
        verify(copy / "R", [keys[1]])


def test_a_stamp_cannot_be_taken_off_a_signed_release(tmp_path: Path, keys: Keys) -> None:
    privatise(TRAIN.x, TRAIN.y, domain=TRAIN.domain, epsilon=1, k=8, seed=1).signed(keys[0]).save(
        tmp_path / "R"
    )
    assert SEEDED in verify(tmp_path / "R", [keys[1]]).stamps
    rewritten(tmp_path / "R" / CERTIFICATE, stamps=[])
    with pytest.raises(UserError, match="is that of another artefact"):
        verify(tmp_path / "R", [keys[1]])


def test_a_model_cannot_carry_the_certificate_of_another_release(copy: Path, keys: Keys) -> None:
    """A model trained at epsilon 100 with the certificate, and its signature, of epsilon 0.01."""
    for name in (CERTIFICATE, OF_RELEASE):
        shutil.copy(copy / "M" / name, copy / "M-open" / name)
    with pytest.raises(UserError, match="one of the two was exchanged"):
        verify(copy / "M-open")
    digest = json.loads((copy / "M" / CERTIFICATE).read_bytes())["digest"]
    rewritten(copy / "M-open" / "model.json", certificate=digest)
    with pytest.raises(UserError, match="is that of another artefact"):
        verify(copy / "M-open")
    (copy / "M-open" / FILE).unlink()
    with pytest.raises(UserError, match=r"the header of .* was altered: epsilon"):
        verify(copy / "M-open")
    without_header(copy / "M-open" / "model.safetensors")
    assert not verify(copy / "M-open").trusted  # whole again, and nobody answers for it
    with pytest.raises(UserError, match="nothing binds the two together"):
        verify(copy / "M-open", [keys[1]])


def test_a_model_of_somebody_elses_key_is_not_bound_to_a_trusted_release(copy: Path, keys: Keys) -> None:
    stranger = Ed25519PrivateKey.generate()
    Model.load(copy / "M").save(copy / "N", key=stranger)
    with pytest.raises(UserError, match="none of the keys"):
        verify(copy / "N", [keys[1]])
    assert verify(copy / "N", [keys[1], stranger.public_key()]).trusted


@pytest.mark.parametrize("where", ["start", "middle", "before the signature", "end"])
def test_no_byte_of_a_signed_onnx_file_can_be_changed(where: str, copy: Path, keys: Keys) -> None:
    data = (copy / "m.onnx").read_bytes()
    at = {"start": 0, "middle": len(data) // 3, "before the signature": len(data) - 900, "end": len(data) - 1}
    changed = bytearray(data)
    changed[at[where]] ^= 1
    (copy / "m.onnx").write_bytes(bytes(changed))
    with pytest.raises(UserError):
        verify(copy / "m.onnx", [keys[1]])
    (copy / "m.onnx").write_bytes(data + data[-40:])
    with pytest.raises(UserError):
        verify(copy / "m.onnx", [keys[1]])


def test_an_onnx_file_cannot_carry_the_certificate_of_another_release(copy: Path, keys: Keys) -> None:
    onnx = pytest.importorskip("onnx")
    weak, strong = (onnx.load(str(copy / name)) for name in ("m-open.onnx", "m.onnx"))
    told = {entry.key: entry.value for entry in strong.metadata_props}
    onnx.helper.set_model_props(weak, told)
    onnx.save(weak, str(copy / "swapped.onnx"))
    with pytest.raises(UserError):
        verify(copy / "swapped.onnx")
    del told["adlm.signature"]
    onnx.helper.set_model_props(weak, told)
    onnx.save(weak, str(copy / "unsigned.onnx"))
    assert "not proved: that the network is the one" in " ".join(verify(copy / "unsigned.onnx").sentences())
    with pytest.raises(UserError, match="nothing binds the two together"):
        verify(copy / "unsigned.onnx", [keys[1]])
    told["adlm.privacy"] = told["adlm.privacy"].replace("0.01", "0.001")
    onnx.helper.set_model_props(weak, told)
    onnx.save(weak, str(copy / "other-totals.onnx"))
    with pytest.raises(UserError, match="other totals than its certificate"):
        verify(copy / "other-totals.onnx")


def test_an_onnx_file_of_somebody_else_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "x.onnx").write_bytes(b"hello")
    with pytest.raises(UserError, match="is not an ONNX file that adlm export wrote"):
        verify(tmp_path / "x.onnx")


def test_a_signed_onnx_file_still_runs(made: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(str(made / "m.onnx"), providers=["CPUExecutionProvider"])
    out = session.run(["probabilities"], {"records": TRAIN.x[:3].astype("float32")})[0]
    assert out.shape == (3, 10)


def test_a_private_key_is_its_owners_alone(tmp_path: Path) -> None:
    told = new_key(tmp_path / "k")
    assert (tmp_path / "k").stat().st_mode & 0o777 == 0o600
    assert told == fingerprint(load_public(tmp_path / "k.pub"))
    with pytest.raises(UserError, match="are not overwritten"):
        new_key(tmp_path / "k")
    (tmp_path / "k").chmod(0o640)
    with pytest.raises(UserError, match="can be read by others"):
        load_key(tmp_path / "k")
    with pytest.raises(UserError, match="is not a public Ed25519 key"):
        load_public(tmp_path / "k")
    (tmp_path / "notes").write_text("hello")
    (tmp_path / "notes").chmod(0o600)
    with pytest.raises(UserError, match="is not a private Ed25519 key"):
        load_key(tmp_path / "notes")


def test_a_signature_for_one_kind_is_none_for_another(keys: Keys) -> None:
    digest = "ab" * 32
    signed = sign(Statement("release", digest, digest), keys[0])
    assert Signature.from_dict(signed.to_dict(), "x").check(signed.statement, "x") == signed
    with pytest.raises(UserError, match="that of another artefact"):
        signed.check(Statement("model", digest, digest), "x")
    forged = replace(signed, statement=Statement("model", digest, digest))
    with pytest.raises(UserError, match="does not hold"):
        forged.check(forged.statement, "x")


def test_a_relevance_network_is_public_because_somebody_says_so_not_its_file(
    tmp_path: Path, keys: Keys
) -> None:
    network = make_public((6,), name="mlp", classes=2, per_class=5, epochs=1)
    network.save(tmp_path / "unsigned")
    with pytest.raises(UserError, match="anybody can write 'public' into a file"):
        RelevanceNetwork.load(tmp_path / "unsigned")
    assert RelevanceNetwork.load(tmp_path / "unsigned", provenance="private").provenance == "private"
    network.save(tmp_path / "signed", key=keys[0])
    assert RelevanceNetwork.load(tmp_path / "signed", trusted=[keys[1]]).provenance == "public"
    with pytest.raises(UserError, match="none of the keys"):
        RelevanceNetwork.load(tmp_path / "signed", trusted=[Ed25519PrivateKey.generate().public_key()])
    about = tmp_path / "signed" / "network.json"
    about.write_bytes(canonical(json.loads(about.read_bytes()) | {"classes": 3}))
    with pytest.raises(UserError, match="of another artefact"):
        RelevanceNetwork.load(tmp_path / "signed", trusted=[keys[1]])


@pytest.mark.parametrize(
    ("provenance", "stamps"),
    [
        (None, ("where the network's weights came from before training was not declared",)),
        ("private", ("NOT PRIVATE: private records had a part in the network before training",)),
        ("public", ()),
    ],
)
def test_weights_that_a_network_brings_along_are_stamped_on_the_model(
    provenance: str | None, stamps: tuple[str, ...], made: Path, tmp_path: Path
) -> None:
    release = Release.load(made / "R")
    head = nn.Sequential(nn.Linear(release.features().width, 10))
    model = fit(release, head, TrainingConfig(epochs=1, batch_size=100), draws=200, provenance=provenance)
    assert model.stamps == stamps
    assert model.certificate.stamps == ()
    model.save(tmp_path / "m")
    assert verify(tmp_path / "m").stamps == stamps
    assert fit(release, "mlp", TrainingConfig(epochs=1, batch_size=100), draws=200).stamps == ()
    with pytest.raises(UserError, match="for a user-supplied module"):
        fit(release, "mlp", provenance="public")


def test_an_unsigned_release_has_no_signature_file(tmp_path: Path) -> None:
    privatise(TRAIN.x, TRAIN.y, domain=TRAIN.domain, epsilon=1, k=8).save(tmp_path / "R")
    assert {p.name for p in (tmp_path / "R").iterdir()} == {TENSORS, CERTIFICATE}
    assert Release.load(tmp_path / "R").signature is None
