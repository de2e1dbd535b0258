"""The command line, from data to report: figures on standard output, mistakes in one sentence."""

from __future__ import annotations

import json
import re
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.cli.commands import figures, run, runner
from tests.cli.commands import place as place

from adlm import UserError, __version__
from adlm.cli import main
from adlm.cli.app import COMMANDS, app
from adlm.model.model import Model
from adlm.privacy.ledger import Ledger
from adlm.privacy.release import Release

STABLE = {"epsilon_claimed", "epsilon_proved", "delta", "neighbours"}


def nothing_charged(ledger: Path) -> bool:
    return not ledger.exists() or "charge" not in ledger.read_text()


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
    places = [text.index(f" {name} {does.split()[0]}") for name, _, does, _ in COMMANDS]
    assert places == sorted(places)
    for *_, example in COMMANDS:
        assert f"Example: {example}" in text


@pytest.mark.parametrize("name", [name for name, *_ in COMMANDS])
def test_every_command_explains_itself(name: str) -> None:
    assert "Example: adlm" in run(name, "--help")


def test_one_epsilon_is_shown_where_claimed_and_proved_are_equal(release: Path) -> None:
    assert "epsilon 4, neighbours replace-one" in run("verify", str(release))
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


@pytest.mark.parametrize("epochs", ["1", "3"])
@pytest.mark.parametrize(("rate", "said"), [("1e30", "the loss "), ("3e37", "not finite"), ("1e-3", None)])
def test_training_that_failed_says_so(rate: str, said: str | None, epochs: str, release: Path) -> None:
    told = run("train", str(release), "--network", "mlp", "--draws", "300", "--epochs", epochs, "--quiet",
               "--batch-size", "300", "--schedule", "constant",
               "--learning-rate", rate, "--out", f"rate-{rate}-{epochs}")  # fmt: skip
    assert ("TRAINING FAILED" in told) == (said is not None)
    assert said is None or said in told
    assert len(told.splitlines()) == 1


@pytest.mark.parametrize("option", ["--epochs=5", "--learning-rate=0.1", "--resume"])
def test_what_a_closed_form_has_no_use_for_is_refused(option: str, release: Path) -> None:
    with pytest.raises(UserError, match=f"{option.split('=')[0]} is for networks"):
        run("train", str(release), option, "--out", "refused")
    assert not (release.parent / "refused").exists()


def test_a_record_release_says_what_is_claimed_and_what_is_proved(place: Path) -> None:
    words = ["release-records", "--data", "digits", "--limit", "300", "--network", "mlp"]
    run("pretrain", "--data", "digits", "--epochs", "1", "--out", "public-network")
    made = figures(*words, "--epsilon", "2", "--batch-size", "100", "--relevance-network", "public-network",
                   "--relevance-provenance", "public", "--delta-h0", "per-patch", "--out", "RR")  # fmt: skip
    assert made["epsilon_claimed"] == pytest.approx(2.0)
    assert made["epsilon_proved"] != pytest.approx(2.0)
    identical = figures(
        *words, "--allocation", "identical", "--epsilon", "2", "--batch-size", "100", "--out", "RI"
    )
    assert identical["epsilon_claimed"] == pytest.approx(2.0)
    trained = figures("train", "RR", "--epochs", "1", "--batch-size", "100", "--out", "MR")
    assert trained["network"] == "mlp"  # the one that the release was made for
    assert figures("evaluate", "MR", "--data", "digits")["n"] == 360


@pytest.mark.parametrize(
    ("network", "batch_size"), [(None, 1800), ("paper-cifar10", 7200), ("mlp", 1800)], ids=str
)
def test_a_network_brings_its_own_batch_size(network: str | None, batch_size: int, place: Path) -> None:
    out = f"BS-{network}"
    asked = [] if network is None else ["--network", network]
    run("release-records", "--allocation", "identical", "--data", "digits", "--limit", "30",
        "--delta-h0", "1e5", "--epsilon", "50", "--out", out, *asked)  # fmt: skip
    settings = json.loads((place / out / "certificate.json").read_text())["settings"]
    assert settings["network"] == (network or "paper-mnist")
    assert settings["batch_size"] == batch_size
    assert (settings["delta_h0"], settings["delta_h0_rule"]) == ("100000", "given")


RECORDS = ["release-records", "--data", "digits", "--ledger", "untouched.jsonl", "--out", "X"]
MOMENTS = ["release", "--data", "digits", "--ledger", "untouched.jsonl", "--out", "X"]
TABLE = ["release", "t.csv", "--domain", "t.toml", "--ledger", "untouched.jsonl", "--out", "X"]


FOR_MOMENTS = [
    "--fourier",
    "--k",
    "--size",
    "--cache",
]
FOR_RECORDS = [
    "--loss",
    "--batch-size",
    "--split",
    "--network",
    "--delta-h0",
    "--mode",
    "--relevance-network",
]


@pytest.mark.parametrize(
    ("words", "option"),
    [*((RECORDS, name) for name in FOR_MOMENTS), *((MOMENTS, name) for name in FOR_RECORDS)],
)
def test_an_option_of_the_other_release_is_refused_before_anything_is_charged(
    words: list[str], option: str, place: Path
) -> None:
    done = runner.invoke(app, [*words, option, "3"])
    assert done.exit_code == 2
    assert f"No such option: {option}" in done.output
    assert nothing_charged(place / "untouched.jsonl")
    assert not (place / "X").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([*MOMENTS, "--fourier", "3"], "--fourier is for tables from a file"),
        ([*MOMENTS, "--domain", "t.toml"], "--domain is for a file or a folder"),
        ([*TABLE, "--limit", "3"], "--limit is for --data"),
        ([*TABLE, "--cache"], "--cache is for --data"),
        ([*RECORDS, "--allocation", "identical", "--relevance-network", "N"], "needs no relevances"),
        ([*RECORDS, "--delta-h0", "many"], "counted, per-patch or a positive number"),
        ([*RECORDS, "--delta-h0", "-3"], "counted, per-patch or a positive number"),
    ],
    ids=lambda value: " ".join(value[5:]) if isinstance(value, list) else "",
)  # fmt: skip
def test_an_option_without_effect_is_refused_before_anything_is_charged(
    words: list[str], message: str, place: Path
) -> None:
    with pytest.raises(UserError, match=message) as caught:
        run(*words)
    assert "\n" not in str(caught.value).strip()
    assert nothing_charged(place / "untouched.jsonl")
    assert not (place / "X").exists()


def test_a_relevance_network_for_other_records_is_refused(place: Path) -> None:
    from adlm.paper.relevance import make_public

    make_public((12,), name="mlp", classes=2, per_class=5, epochs=1).save(place / "other-shape")
    with pytest.raises(UserError, match=r"is for records of shape \(12,\), and these have shape \(8, 8\)"):
        run(*RECORDS, "--network", "mlp", "--relevance-network", "other-shape",
            "--relevance-provenance", "public")  # fmt: skip
    assert nothing_charged(place / "untouched.jsonl")


def test_a_budget_is_kept_across_commands(place: Path) -> None:
    words = ["release", "--data", "digits", "--limit", "200", "--epsilon", "1", "--ledger", "L"]
    run(*words, "--budget", "1.5", "--out", "B1")
    with pytest.raises(UserError, match=r"under replace-one per record is epsilon 0\.5"):
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


def test_a_plan_is_the_one_that_the_release_follows(place: Path) -> None:
    from adlm.data import datasets
    from adlm.mechanism.privatise import privatise

    train = datasets.load("digits", "train")
    found = figures("plan", "--data", "digits", "--epsilon", "1")["plans"][0]
    made = privatise(train.x, train.y, domain=train.domain, epsilon=1).certificate.settings["plan"]
    assert {name: found[name] for name in made} == made
    x, y = np.tile(train.x, (9, 1, 1)), np.tile(train.y, 9)  # enough records for a perturbed loss
    words = ["--size", str(len(x)), "--epsilon", "1"]
    found = figures("plan", "--data", "digits", *words)["plans"][0]
    made = privatise(x, y, domain=train.domain, epsilon=1).certificate.settings["plan"]
    assert {name: found[name] for name in made} == made
    assert found["objective"]["classes"] == 10


def test_a_seed_is_stamped(place: Path) -> None:
    made = figures("release", "--data", "digits", "--limit", "100", "--seed", "1", "--out", "S")
    assert made["stamps"] == ["NOT PRIVATE: seeded"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["release", "--data", "digits", "--epsilon", "0", "--out", "X"], "must be positive"),
        (["release", "--data", "digits", "--epsilon", "-1", "--out", "X"], "must be positive"),
        (["release", "--data", "digits", "--epsilon", "nan", "--out", "X"], "positive number"),
        (["release", "--data", "digits", "--delta", "2", "--out", "X"], "below 1"),
        (["release", "--data", "nothing", "--out", "X"], "no data set 'nothing'"),
        (["release", "--out", "X"], "either a file"),
        (
            ["release", "--data", "digits", "--kind", "images", "--out", "X"],
            "--kind must be model or synthetic",
        ),
        (["release", "--data", "digits", "--kind", "records", "--out", "X"], "by adlm release-records"),
        (["release", "--data", "digits", "--neighbours", "add-remove", "--out", "X"], "is private"),
        (["release", "missing.csv", "--out", "X"], "needs --domain"),
        (["release", "--data", "digits", "--allocation", "foo", "--out", "X"], "one of identical, linear"),
        (["plan", "--data", "digits", "--fourier", "2"], "is for tables"),
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


@pytest.mark.parametrize(
    "words",
    [
        ["release", "--data", "digits", "--limit", "-5"],
        ["release", "--data", "digits", "--size", "0"],
        ["plan", "--data", "digits", "--size", "0"],
        ["experiment", "frontier-digits", "--jobs", "-1"],
        ["experiment", "foo"],
        ["audit", "--runs", "5"],
        ["train", "R", "--seed", "99999999999999999999"],
        ["pretrain", "--data", "digits", "--seed", "99999999999999999999"],
        ["foo"],
    ],
    ids=" ".join,
)
def test_what_the_command_line_does_not_take_is_one_sentence_too(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["adlm", *words])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("adlm: ")
    assert len(said.err.strip().splitlines()) == 1


def test_a_group_without_a_command_shows_its_help(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["adlm", "experiment"])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 2
    said = capsys.readouterr()
    assert "frontier-mnist" in said.out + said.err


def test_nothing_is_charged_where_nothing_can_be_written(place: Path) -> None:
    (place / "file").write_text("not a folder")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with pytest.raises(UserError, match="cannot be written"):
        run("release", "--data", "digits", "--out", "file/R", "--ledger", "room.jsonl")
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
    try:
        with pytest.raises(UserError, match="nothing is left behind"):
            run("release", "--data", "digits", "--out", "R-full", "--ledger", "room.jsonl")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not (place / "R-full").exists()
    assert nothing_charged(place / "room.jsonl")


def test_a_charge_that_came_to_nothing_is_told_of(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The place is taken while the records are read: the release cannot be written, its charge stays."""
    save = Release.save

    def too_late(release: Release, folder: Path | str) -> None:
        Path(folder).mkdir()
        save(release, folder)

    monkeypatch.setattr(Release, "save", too_late)
    with pytest.raises(UserError, match=r"exists already.*the charge stays in taken\.jsonl"):
        run("release", "--data", "digits", "--out", "taken", "--ledger", "taken.jsonl")


def test_a_model_is_not_a_release_and_a_release_not_a_model(release: Path, model: Path) -> None:
    with pytest.raises(UserError, match="is a model, not a release"):
        run("train", str(model), "--out", "X")
    with pytest.raises(UserError, match="is a release, not a model"):
        run("evaluate", str(release), "--data", "digits")


def test_training_into_an_existing_folder_is_refused_before_it_starts(release: Path, model: Path) -> None:
    with pytest.raises(UserError, match="exists already"):
        run("train", str(release), "--network", "mlp", "--out", str(model))
    assert not model.with_name("M.checkpoint").exists()


def test_a_report_takes_no_other_files_for_figures(model: Path, place: Path) -> None:
    wrong = place / "wrong.json"
    for option, text in (
        ("--evaluation", '{"foo": 1}'),
        ("--evaluation", '{"accuracy": "x", "confusion": [[1]]}'),
        ("--evaluation", '{"accuracy": 0.5, "confusion": [[1, 2]]}'),
        ("--audit", '{"foo": 1}'),
        ("--audit", '{"findings": [{"a": 1}]}'),
    ):
        wrong.write_text(text)
        with pytest.raises(UserError, match="give a file that adlm"):
            run("report", str(model), option, str(wrong), "--out", "wrong.html")
    assert not (place / "wrong.html").exists()


def test_a_report_tells_how_to_make_such_a_release_again(place: Path) -> None:
    asked = ["--epsilon", "3", "--delta", "1e-5", "--k", "12", "--allocation", "linear"]
    run("release", "--data", "digits", "--out", "asked", *asked)
    run("report", "asked", "--out", "asked.html")
    page = (place / "asked.html").read_text()
    assert "--epsilon 3 --delta 1e-5 --allocation linear --k 12" in page


def test_version() -> None:
    assert run("--version").strip() == f"adlm {__version__}"


def test_a_table_can_be_released_record_by_record(place: Path) -> None:
    (place / "t.toml").write_text(
        '[columns.age]\nkind = "numeric"\nlower = 0\nupper = 100\n'
        '[columns.ill]\nkind = "label"\nclasses = ["no", "yes"]\n'
    )
    lines = [f"{age},{'yes' if age > 50 else 'no'}" for age in range(100)]
    (place / "t.csv").write_text("\n".join(["age,ill", *lines]) + "\n")
    words = ["release-records", "t.csv", "--domain", "t.toml"]
    made = figures(*words, "--allocation", "identical", "--batch-size", "20", "--epsilon", "4", "--out", "TR")
    assert made["n"] == 100
    run("train", "TR", "--epochs", "1", "--batch-size", "20", "--out", "TM")
    assert figures("evaluate", "TM", "t.csv")["n"] == 100
    run("predict", "TM", "t.csv", "--out", "t-predictions.csv")
    assert len((place / "t-predictions.csv").read_text().splitlines()) == 101
    run("export", "TM", "--out", "t.onnx")
    assert (place / "t.onnx").stat().st_size > 1000
    run(*words, "--batch-size", "20", "--epsilon", "4", "--out", "TA")
    run("report", "TA", "--out", "ta.html")
    text = (place / "ta.html").read_text()
    assert "Relevance of columns" in text  # added up over the numbers that encode a column
    assert ">age<" in text


@pytest.mark.parametrize("relation", ["replace-one", "add-remove"])
def test_several_records_of_a_person_cannot_be_released_record_by_record(place: Path, relation: str) -> None:
    """Nor can one, where the number of records is private: a list of them shows it."""
    most = 2 if relation == "replace-one" else 1
    (place / "p.toml").write_text(
        f'neighbours = "{relation}"\n[columns.id]\nkind = "person"\nrecords = {most}\n'
        '[columns.age]\nkind = "numeric"\nlower = 0\nupper = 100\n'
        '[columns.ill]\nkind = "label"\nclasses = ["no", "yes"]\n'
    )
    (place / "p.csv").write_text("id,age,ill\na,1,no\na,2,yes\nb,3,no\n")
    words = [
        "release-records",
        "p.csv",
        "--domain",
        "p.toml",
        "--allocation",
        "identical",
        "--batch-size",
        "2",
    ]
    done = runner.invoke(app, [*words, "--ledger", "untouched.jsonl", "--out", "X"])
    assert isinstance(done.exception, UserError)
    assert "2 of them" in str(done.exception) or "shows how many records" in str(done.exception)
    assert nothing_charged(place / "untouched.jsonl")


@pytest.mark.parametrize("option", ["--model", "--relevance", "--second-moment-dim", "--sums-budget-share"])
def test_options_of_mechanisms_that_are_gone_are_refused(option: str, place: Path) -> None:
    done = runner.invoke(app, [*MOMENTS, option, "3"])
    assert done.exit_code == 2
    assert f"No such option: {option}" in done.output
    assert nothing_charged(place / "untouched.jsonl")


def test_random_fourier_features_are_given_by_number(place: Path) -> None:
    words = ["release", "t.csv", "--domain", "t.toml", "--epsilon", "4"]
    run(*words, "--fourier", "3", "--out", "F3")
    plan = json.loads((place / "F3" / "certificate.json").read_text())["settings"]["plan"]
    assert plan["fourier"] == 3
    with pytest.raises(UserError, match="an integer from 0"):
        run(*words, "--fourier", "-1", "--out", "FX")
    with pytest.raises(UserError, match="for tables from a file"):
        run("release", "--data", "digits", "--fourier", "2", "--out", "FX")
    planned = figures("plan", "--domain", "t.toml", "--size", "100", "--epsilon", "1", "--fourier", "3")
    assert planned["plans"][0]["fourier"] == 3
    assert figures("audit", "--release", "F3")["sound"]


def test_help_shows_no_types_of_python_and_no_keys_of_json() -> None:
    for name, *_ in COMMANDS:
        text = run(name, "--help")
        assert not re.search(r"<(bool|str|path|int|list)", text)
        assert "With --json:" not in text


@pytest.mark.parametrize("command", ["release", "release-records"])
def test_an_epsilon_that_is_too_small_is_refused_before_the_charge(command: str, place: Path) -> None:
    with pytest.raises(UserError, match="epsilon must be at least 1e-09"):
        run(command, "--data", "digits", "--epsilon", "1e-12", "--out", "tiny", "--ledger", "tiny.jsonl")
    assert not (place / "tiny.jsonl").exists()


def test_a_second_release_says_what_the_records_were_charged_in_total(place: Path) -> None:
    words = ("release", "--data", "digits", "--delta", "1e-5", "--epsilon", "1", "--ledger", "twice.jsonl")
    first = run(*words, "--out", "once", "--quiet")
    assert "in total" not in first
    assert "charged in total: epsilon 1." in run(*words, "--out", "twice", "--quiet")
    assert repr(Ledger(place / "twice.jsonl")).startswith("Ledger('")


def test_release_and_model_have_one_line_each(release: Path, model: Path) -> None:
    assert repr(Release.load(release)) == "Release('moments', epsilon 4, neighbours replace-one, per record)"
    assert "\n" not in repr(Model.load(model))


def test_a_privacy_statement_and_a_registry_entry_follow_from_the_certificate(model: Path) -> None:
    text = run("report", str(model), "--statement")
    assert "epsilon = 4." in text
    assert "at most 54.6" in text  # e^4
    entry = json.loads(run("card", str(model), "--registry"))
    assert entry["privacy_loss"]["epsilon"] == 4.0
    assert entry["dp_flavor"]["name"] == "pure DP"
    assert entry["dp_flavor"]["unprotected_quantities"] == ["the number of records"]


def test_a_network_of_another_shape_is_refused_before_it_is_trained(release: Path) -> None:
    from torch import nn

    from adlm import fit

    made = Release.load(release)
    width = made.features().width
    takes = rf"must map \(n, {width}\) to \(n, 10\)"
    with pytest.raises(UserError, match=takes):
        fit(made, nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(144, 10)), draws=100)
    with pytest.raises(UserError, match=rf"{takes}, and yours gives \(2, 3\)"):
        fit(made, nn.Linear(width, 3), draws=100)


def test_columns_are_kept_beside_the_predictions(place: Path) -> None:
    (place / "k.toml").write_text(
        '[columns.age]\nkind = "numeric"\nlower = 0\nupper = 100\n'
        '[columns.ill]\nkind = "label"\nclasses = ["no", "yes"]\n'
    )
    lines = [f"p{age},{age},{'yes' if age > 50 else 'no'}" for age in range(100)]
    (place / "k.csv").write_text("\n".join(["id,age,ill", *lines]) + "\n")
    run("release", "k.csv", "--domain", "k.toml", "--epsilon", "9", "--out", "KR")
    run("train", "KR", "--out", "KM")
    run("predict", "KM", "k.csv", "--keep", "id", "--out", "kept.csv")
    rows = (place / "kept.csv").read_text().splitlines()
    assert rows[0] == "id,prediction,probability of no,probability of yes"
    assert [row.split(",")[0] for row in rows[1:]] == [f"p{age}" for age in range(100)]
    with pytest.raises(UserError, match="has no column 'name'"):
        run("predict", "KM", "k.csv", "--keep", "name", "--out", "other.csv")
    assert not (place / "other.csv").exists()
