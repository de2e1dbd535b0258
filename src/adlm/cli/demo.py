"""`adlm demo`: the main job from end to end, on data that needs no download."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adlm.cli.console import AsJson, Output, Quiet
from adlm.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from adlm.data.datasets import Records
    from adlm.model.model import Model
    from adlm.privacy.accounting import Totals
    from adlm.privacy.release import Release


def demo(
    out: Annotated[Path, typer.Option(help="Output folder; must not exist.")] = Path("demo"),
    epsilon: Annotated[str, typer.Option(help="The privacy budget.")] = "2",
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Release scikit-learn's digits, train, run the paper's Algorithm 1 beside it, audit, report.

    Models of 1 and of 100 epochs share one certificate. Algorithm 1 runs on the same records at the same
    claimed epsilon, with noise by relevance (AdLM) and identical noise (ILM).

    With --json: {"methods": [{"method", "epsilon_claimed", "epsilon_proved", "accuracy"}], "accuracy",
    "accuracy_1_epoch", "accuracy_100_epochs", "certificate_unchanged", "audit_violations", "report",
    "seconds"} and the certificate's totals.
    """
    from adlm.audit.runner import Depth, run
    from adlm.data import datasets
    from adlm.mechanism.privatise import privatise
    from adlm.model.metrics import measure
    from adlm.privacy.folders import CERTIFICATE
    from adlm.privacy.release import Release
    from adlm.report import write_report
    from adlm.runtime.artefact import canonical, write_file

    output = Output(as_json, quiet)
    if out.exists():
        raise UserError(f"{out} exists already; choose another --out or remove it first")
    start = time.monotonic()
    train, test = datasets.load("digits", "train"), datasets.load("digits", "test")

    output.say(f"1. A release of {len(train)} private records of digits, at epsilon {epsilon}")
    privatise(train.x, train.y, domain=train.domain, epsilon=epsilon).save(out / "release")
    release = Release.load(out / "release")
    totals = release.certificate.totals
    output.say(f"   {totals.sentence()}")

    output.say("2. Models from the release alone; more of them, or more epochs, cost no privacy")
    accuracy = {}
    for name, model in _models(release):
        model.save(out / name)
        figures: dict[str, Any] = measure(model.probabilities(test.x), test.y).to_dict()
        figures |= {"classes": list(train.domain.classes), "of": "digits", "split": "test"}
        write_file(out / f"{name}.evaluation.json", canonical(figures), what="evaluation")
        accuracy[name] = figures["accuracy"]
        output.say(f"   {name}: accuracy {accuracy[name]:.3f} on {len(test)} test records")
    folders = (out / "release", *(out / name for name in accuracy))
    unchanged = len({(folder / CERTIFICATE).read_bytes() for folder in folders}) == 1
    output.say(
        f"   the certificate is {'the same, byte for byte' if unchanged else 'NOT the same'} in all of them"
    )

    output.say("3. The paper's Algorithm 1 on the same records, at the same claimed epsilon")
    methods = [_row(name, totals, accuracy[name]) for name in accuracy]
    for name, allocation in (("AdLM, Algorithm 1", "linear"), ("ILM, identical noise", "identical")):
        methods.append(_paper(name, allocation, epsilon, train, test))
        output.say(f"   {name}: accuracy {methods[-1]['accuracy']:.3f}")

    output.say("4. The mechanisms are attacked: each attack looks for an epsilon above the proved one")
    audit = run(Depth(runs=2_000, evaluations=2, whole_releases=30, support=20_000, canaries=30))
    write_file(out / "audit.json", canonical(audit.to_dict()), what="audit")
    output.say(f"   {len(audit.findings)} attacks, {len(audit.violations)} violations")
    keys = ("epsilon_claimed", "epsilon_proved")
    rows = [[row["method"], *(_shown(row[k]) for k in keys), f"{row['accuracy']:.3f}"] for row in methods]
    output.table(["method", "claimed", "proved", "accuracy"], rows)

    report = write_report(out, out / "report.html", audit=audit.to_dict())
    output.result(
        {
            "methods": methods,
            "accuracy": accuracy["closed-form"],
            "accuracy_1_epoch": accuracy["network-1-epoch"],
            "accuracy_100_epochs": accuracy["network-100-epochs"],
            "certificate_unchanged": unchanged,
            "audit_violations": len(audit.violations),
            "report": str(report),
            "seconds": round(time.monotonic() - start, 1),
        }
        | totals.to_dict(),
        f"accuracy {accuracy['closed-form']:.3f}; {totals.sentence()}; open {report}",
    )


def _row(name: str, totals: Totals, accuracy: float) -> dict[str, Any]:
    """A row of the table at the end."""
    stated = totals.to_dict()
    return {"method": name, "accuracy": accuracy} | {
        key: stated[key] for key in ("epsilon_claimed", "epsilon_proved")
    }


def _shown(epsilon: float | None) -> str:
    return "none" if epsilon is None else f"{epsilon:.3g}"


def _paper(name: str, allocation: str, epsilon: str, train: Records, test: Records) -> dict[str, Any]:
    """Run Algorithm 1 on a small network; its warnings repeat what the table shows."""
    import warnings

    import adlm.paper
    from adlm.errors import WeakReleaseWarning
    from adlm.model.metrics import measure
    from adlm.model.training import TrainingConfig

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WeakReleaseWarning)
        model, _ = adlm.paper.train(
            "mlp",
            train.x,
            train.y,
            train.domain,
            epsilon,
            allocation=allocation,
            plan=TrainingConfig(epochs=12, batch_size=100),
        )
    accuracy = measure(model.probabilities(test.x), test.y).accuracy
    return _row(name, model.certificate.totals, float(accuracy))


def _models(release: Release) -> Iterator[tuple[str, Model]]:
    """Yield a linear classifier, and a network after few and after many epochs, all from one release."""
    from adlm.model.fit import fit
    from adlm.model.training import TrainingConfig

    yield "closed-form", fit(release)
    for epochs, name in ((1, "network-1-epoch"), (100, "network-100-epochs")):
        yield name, fit(release, "mlp", TrainingConfig(epochs=epochs, batch_size=250), draws=6_000)
