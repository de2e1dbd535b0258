"""The command line, from data to report: figures on standard output, mistakes in one sentence."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from adlm import UserError, __version__, progress
from adlm.cli.app import COMMANDS, app

STABLE = {"epsilon_claimed", "epsilon_proved", "delta", "neighbours"}
runner = CliRunner()


@pytest.fixture(scope="module", autouse=True)
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("cli")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("ADLM_LEDGERS", str(folder / "ledgers"))
        yield folder
    progress.enable(False)


def run(*words: str) -> str:
    done = runner.invoke(app, list(words), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def figures(*words: str) -> dict[str, Any]:
    found = json.loads(run(*words, "--json"))
    assert isinstance(found, dict)
    return found


@pytest.fixture(scope="module")
def release(place: Path) -> Path:
    made = figures("release", "--data", "digits", "--epsilon", "4", "--out", "R")
    assert made["epsilon_proved"] == 4.0
    assert set(made) >= STABLE
    return place / "R"


@pytest.fixture(scope="module")
def model(release: Path) -> Path:
    assert figures("train", str(release), "--out", "M")["epsilon_proved"] == 4.0
    return release.parent / "M"


def test_help_lists_every_command_in_the_order_of_use_with_an_example() -> None:
    text = " ".join(run("--help").replace("│", " ").split())
    places = [text.index(f" {name} {does.split()[0]}") for name, _, _, does, _ in COMMANDS]
    assert places == sorted(places)
    for _, _, _, _, example in COMMANDS:
        assert f"Example: {example}" in text


@pytest.mark.parametrize("name", [name for name, *_ in COMMANDS])
def test_every_command_explains_itself(name: str) -> None:
    assert "Example: adlm" in run(name, "--help")


def test_verify_says_claimed_and_proved_together(release: Path) -> None:
    assert "epsilon claimed 4, proved 4" in run("verify", str(release))
    assert figures("verify", str(release))["whole"] is True


def test_evaluate_prints_fractions_under_stable_keys(model: Path) -> None:
    found = figures("evaluate", str(model), "--data", "digits", "--save", "M.evaluation.json")
    assert set(found) >= STABLE | {"accuracy", "balanced_accuracy", "auc", "calibration_error", "confusion"}
    assert 0.6 < found["accuracy"] < 1
    assert found["n"] == 360


def test_a_report_is_one_file(model: Path) -> None:
    run("report", str(model), "--out", "report.html")
    assert "<html" in (model.parent / "report.html").read_text()


def test_quiet_prints_the_result_alone(release: Path) -> None:
    assert len(run("verify", str(release), "--quiet").splitlines()) == 1


def test_a_network_is_trained_on_the_release_and_resumed(release: Path) -> None:
    told = figures("train", str(release), "--network", "mlp", "--epochs", "2", "--draws", "500", "--out", "N")
    few = figures("train", str(release), "--network", "mlp", "--steps", "3", "--draws", "500", "--out", "F")
    assert few["epsilon_proved"] == told["epsilon_proved"]
    assert told["epochs"] == 2
    assert (release.parent / "N" / "certificate.json").read_bytes() == (
        release / "certificate.json"
    ).read_bytes()


def test_a_record_release_says_what_is_claimed_and_what_is_proved(place: Path) -> None:
    words = ["release", "--kind", "records", "--data", "digits", "--limit", "300", "--network", "mlp"]
    run("pretrain", "--data", "digits", "--epochs", "1", "--out", "public-network")
    made = figures(*words, "--epsilon", "2", "--batch-size", "100", "--relevance-network", "public-network",
                   "--delta-h0", "per-patch", "--out", "RR")  # fmt: skip
    assert made["epsilon_claimed"] == pytest.approx(2.0)
    assert made["epsilon_proved"] != pytest.approx(2.0)
    identical = figures(*words, "--method", "ilm", "--epsilon", "2", "--batch-size", "100", "--out", "RI")
    assert identical["epsilon_claimed"] == pytest.approx(2.0)
    run("train", "RR", "--network", "mlp", "--epochs", "1", "--batch-size", "100", "--out", "MR")
    assert figures("evaluate", "MR", "--data", "digits")["n"] == 360


def test_a_budget_is_kept_across_commands(place: Path) -> None:
    words = ["release", "--data", "digits", "--limit", "200", "--epsilon", "1", "--ledger", "L"]
    run(*words, "--budget", "1.5", "--out", "B1")
    with pytest.raises(UserError, match=r"what is left is epsilon 0\.5"):
        run(*words, "--out", "B2")
    assert not (place / "B2").exists()


def test_a_plan_spends_nothing(place: Path) -> None:
    before = sorted(p.name for p in (place / "ledgers").glob("*")) if (place / "ledgers").exists() else []
    found = figures("plan", "--data", "digits", "--epsilon", "0.5,4", "--picture", "plan.svg")
    assert [p["epsilon"] for p in found["plans"]] == [0.5, 4.0]
    assert all(p["reasons"] and 0 <= p["accuracy"] <= 1 for p in found["plans"])
    assert (place / "plan.svg").read_text().lstrip().startswith("<")
    after = sorted(p.name for p in (place / "ledgers").glob("*")) if (place / "ledgers").exists() else []
    assert before == after


def test_a_seed_is_stamped(place: Path) -> None:
    made = figures("release", "--data", "digits", "--limit", "100", "--seed", "1", "--out", "S")
    assert made["stamps"] == ["NOT PRIVATE: seeded"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["release", "--data", "digits", "--epsilon", "0", "--out", "X"], "greater than 0"),
        (["release", "--data", "digits", "--epsilon", "-1", "--out", "X"], "greater than 0"),
        (["release", "--data", "digits", "--epsilon", "nan", "--out", "X"], "positive number"),
        (["release", "--data", "digits", "--delta", "2", "--out", "X"], "below 1"),
        (["release", "--data", "nothing", "--out", "X"], "no data set 'nothing'"),
        (["release", "--out", "X"], "either a file"),
        (["release", "--data", "digits", "--kind", "images", "--out", "X"], "one of moments, records"),
        (["release", "--data", "digits", "--neighbours", "add-remove", "--out", "X"], "is private"),
        (["release", "missing.csv", "--out", "X"], "needs --domain"),
        (["verify", "nowhere"], "is not a release"),
        (["train", "nowhere", "--out", "X"], "is not a release"),
        (["evaluate", "nowhere", "--data", "digits"], "is not a model"),
        (["plan", "--data", "digits", "--epsilon", "x"], "positive number"),
        (["plan"], "either --data"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_one_sentence(words: list[str], message: str, place: Path) -> None:
    with pytest.raises(UserError, match=message) as caught:
        run(*words)
    assert "\n" not in str(caught.value).strip()
    assert not (place / "X").exists()


def test_a_mistake_ends_with_exit_code_2_on_standard_error_and_without_a_traceback(place: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "adlm", "verify", "nowhere"], capture_output=True, text=True,
                          cwd=place, check=False)  # fmt: skip
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("adlm: nowhere is not a release")
    assert len(done.stderr.strip().splitlines()) == 1


def test_version() -> None:
    assert run("--version").strip() == f"adlm {__version__}"


def test_a_table_can_be_released_record_by_record(place: Path) -> None:
    (place / "t.toml").write_text(
        '[columns.age]\nkind = "numeric"\nlower = 0\nupper = 100\n'
        '[columns.ill]\nkind = "label"\nclasses = ["no", "yes"]\n'
    )
    lines = [f"{age},{'yes' if age > 50 else 'no'}" for age in range(100)]
    (place / "t.csv").write_text("\n".join(["age,ill", *lines]) + "\n")
    words = ["release", "t.csv", "--domain", "t.toml", "--kind", "records", "--network", "mlp"]
    made = figures(*words, "--method", "ilm", "--batch-size", "20", "--epsilon", "4", "--out", "TR")
    assert made["n"] == 100
    run("train", "TR", "--network", "mlp", "--epochs", "1", "--batch-size", "20", "--out", "TM")
    assert figures("evaluate", "TM", "t.csv")["n"] == 100
    run("predict", "TM", "t.csv", "--out", "t-predictions.csv")
    assert len((place / "t-predictions.csv").read_text().splitlines()) == 101
    run("export", "TM", "--out", "t.onnx")
    assert (place / "t.onnx").stat().st_size > 1000
    run(*words, "--method", "adlm", "--batch-size", "20", "--epsilon", "4", "--out", "TA")
    run("report", "TA", "--out", "ta.html")
    text = (place / "ta.html").read_text()
    assert "Relevance of columns" in text  # added up over the numbers that encode a column
    assert ">age<" in text


def test_random_fourier_features_are_asked_for_by_number_or_by_rule(place: Path) -> None:
    words = ["release", "t.csv", "--domain", "t.toml", "--epsilon", "4"]
    run(*words, "--fourier", "3", "--out", "F3")
    plan = json.loads((place / "F3" / "certificate.json").read_text())["settings"]["plan"]
    assert plan["fourier"] == 3
    run(*words, "--fourier", "auto", "--out", "FA")
    for given in ("many", "-1"):
        with pytest.raises(UserError, match="must be auto or a whole number"):
            run(*words, "--fourier", given, "--out", "FX")
    with pytest.raises(UserError, match="for tables from a file"):
        run("release", "--data", "digits", "--fourier", "2", "--out", "FX")
    planned = figures("plan", "--domain", "t.toml", "--size", "100", "--epsilon", "1", "--fourier", "3")
    assert planned["plans"][0]["fourier"] == 3
    assert figures("audit", "--release", "F3")["sound"]
