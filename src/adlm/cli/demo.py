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

    from adlm.model.model import Model
    from adlm.privacy.release import Release


def demo(
    out: Annotated[Path, typer.Option(help="Output folder; must not exist.")] = Path("demo"),
    epsilon: Annotated[str, typer.Option(help="The privacy budget.")] = "2",
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Release scikit-learn's digits, train for 1 and for 100 epochs on the one certificate, audit, report.

    With --json: {"accuracy", "accuracy_1_epoch", "accuracy_100_epochs", "certificate_unchanged",
    "audit_violations", "report", "seconds"} and the certificate's totals.
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

    output.say(f"1. {len(train)} private records of digits are read once, at epsilon {epsilon}")
    privatise(train.x, train.y, domain=train.domain, epsilon=epsilon).save(out / "release")
    release = Release.load(out / "release")
    totals = release.certificate.totals
    output.say(f"   {totals.sentence()}")

    output.say("2. Models are made from the release alone, as many and for as long as one likes")
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

    output.say("3. The mechanisms are attacked")
    audit = run(Depth(runs=5_000, evaluations=3, whole_releases=80, support=50_000, canaries=60))
    write_file(out / "audit.json", canonical(audit.to_dict()), what="audit")
    output.say(f"   {len(audit.findings)} attacks, {len(audit.violations)} violations")

    report = write_report(out, out / "report.html", audit=audit.to_dict())
    output.result(
        {
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


def _models(release: Release) -> Iterator[tuple[str, Model]]:
    """Yield a linear classifier, and a network after few and after many epochs, all from one release."""
    from adlm.model.fit import fit
    from adlm.model.training import TrainingConfig

    yield "closed-form", fit(release)
    for epochs, name in ((1, "network-1-epoch"), (100, "network-100-epochs")):
        yield name, fit(release, "mlp", TrainingConfig(epochs=epochs, batch_size=250), draws=6_000)
