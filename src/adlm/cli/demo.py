"""`adlm demo`: the main job from end to end, on data that needs no download."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from adlm.cli.console import AsJson, Output, Quiet


def demo(
    out: Annotated[Path, typer.Option(help="Folder to make.")] = Path("demo"),
    epsilon: Annotated[str, typer.Option(help="The privacy budget.")] = "2",
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Release scikit-learn's digits, train for 1 and for 100 epochs on the one certificate, audit, report.

    With --json: {"accuracy", "accuracy_1_epoch", "accuracy_100_epochs", "certificate_unchanged",
    "audit_violations", "report", "seconds"} and the certificate's totals.
    """
    from adlm.analyst.fit import fit
    from adlm.analyst.metrics import measure
    from adlm.analyst.training import Plan
    from adlm.artefact import canonical, write_file
    from adlm.audit.runner import quick_audit
    from adlm.errors import UserError
    from adlm.curation import privatise
    from adlm.public import datasets
    from adlm.release import CERTIFICATE, Release
    from adlm.report import write_report

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
    model = fit(release)
    model.save(out / "model")
    found: dict[str, Any] = measure(model.probabilities(test.x), test.y).to_dict()
    output.say(f"   in closed form: accuracy {found['accuracy']:.3f} on {len(test)} test records")
    epochs = {}
    for count in (1, 100):
        plan = Plan(epochs=count, batch_size=500, learning_rate=3e-3)
        trained = fit(release, "mlp", plan, draws=10_000)
        trained.save(out / f"network-{count}")
        epochs[count] = measure(trained.probabilities(test.x), test.y).accuracy
        output.say(f"   a network, {count} epoch{'s' * (count > 1)}: accuracy {epochs[count]:.3f}")
    folders = (out / "release", out / "model", out / "network-1", out / "network-100")
    unchanged = len({(folder / CERTIFICATE).read_bytes() for folder in folders}) == 1
    output.say(
        f"   the certificate is {'the same, byte for byte' if unchanged else 'NOT the same'} in all of them"
    )

    output.say("3. The mechanisms are attacked")
    audit = quick_audit()
    violations = [row for row in audit["findings"] if row["verdict"] == "violated"]
    output.say(f"   {len(audit['findings'])} attacks, {len(violations)} violations")

    figures = found | {"classes": list(train.domain.classes), "of": "digits", "split": "test"}
    write_file(out / "model" / "evaluation.json", canonical(figures), what="evaluation")
    report = write_report(out / "model", out / "report.html", evaluation=figures, audit=audit)
    output.result(
        {
            "accuracy": found["accuracy"],
            "accuracy_1_epoch": epochs[1],
            "accuracy_100_epochs": epochs[100],
            "certificate_unchanged": unchanged,
            "audit_violations": len(violations),
            "report": str(report),
            "seconds": round(time.monotonic() - start, 1),
        }
        | totals.to_dict(),
        f"accuracy {found['accuracy']:.3f}; {totals.sentence()}; open {report}",
    )
