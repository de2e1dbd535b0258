"""`adlm audit`, `adlm demo` and `adlm doctor`: attacks, the whole way on public data, and this machine."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import tempfile
import time
import warnings
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adlm.cli.console import Output, counted, require_new
from adlm.errors import UserError
from adlm.version import __version__

if TYPE_CHECKING:
    from packaging.requirements import Requirement

    from adlm.audit.runner import Audit
    from adlm.data.datasets import Records
    from adlm.model.model import Model

# ---- adlm audit

RUNS = typer.Option(min=100, max=10**7)


def audit(
    *,
    release: Annotated[Path | None, "Audit this release folder instead of adlm itself."] = None,
    subject: Annotated[list[str] | None, "Audit a plug-in, FILE.py:NAME, instead; may be repeated."] = None,
    controls: Annotated[bool, "Also attack negative controls, which are broken on purpose."] = False,
    runs: Annotated[int | None, "Runs on each of two neighbouring data sets.", RUNS] = None,
    as_json: bool = False,
    quiet: bool = False,
) -> None:
    """Attack every mechanism and compare lower bounds with the claimed and proved epsilon.

    Each mechanism is run on neighbouring data sets; a lower bound above the proved epsilon is a violation.
    A sound product is called violated at most once in a thousand commands. Exit code 1 on a violation of the
    product, or when a control, which must be violated, is not caught.

    With --json: {"findings": [{"attack", "mechanism", "neighbours", "epsilon_claimed", "epsilon_proved",
    "delta", "mu", "epsilon_lower", "confidence", "runs", "verdict", "control", "note", "curve"}],
    "violations", "controls_missed", "false_alarm_rate", "seconds", "sound"}.
    """
    from adlm.privacy.folders import require_release

    output = Output(as_json, quiet)
    if subject and (release is not None or controls):
        raise UserError("--subject goes without --release and --controls; run them one after the other")
    if release is not None:
        require_release(release)
    from adlm.audit.runner import Depth, run, run_black_box
    from adlm.audit.statistics import HEADINGS

    depth = Depth() if runs is None else Depth(runs=runs)
    if subject:
        result = run_black_box(subject, depth.runs)
    else:
        result = run(depth, with_controls=controls, release=release)
    output.table(HEADINGS, [finding.row() for finding in result.findings if not finding.control])
    if controls:
        output.say("\nControls, wrong on purpose: each must be violated")
        output.table(HEADINGS, [finding.row() for finding in result.findings if finding.control])
    for finding in result.findings if subject else ():
        output.say(f"{finding.mechanism}: {finding.note}")
    output.result(result.to_dict(), _sentence(result, "claimed" if subject else "proved"))
    if not result.sound:
        raise typer.Exit(1)


def _sentence(result: Audit, against: str) -> str:
    attacks = [f for f in result.findings if not f.control]
    wrong = [f for f in result.findings if f.control]
    text = f"{sum(f.passed for f in attacks)} of {len(attacks)} attacks stay below what is {against}"
    if wrong:
        text += f"; {sum(f.passed for f in wrong)} of {len(wrong)} controls caught"
    return f"{text}; {'sound' if result.sound else 'NOT SOUND'} ({result.seconds:.0f} s)"


# ---- adlm demo


def demo(
    *,
    out: Path = Path("demo"),
    epsilon: Annotated[str, "The privacy budget."] = "2",
    as_json: bool = False,
    quiet: bool = False,
) -> None:
    """Release digits, train, run the paper's Algorithm 1 beside it, attack, report: end to end.

    Models of 1 and of 100 epochs share one certificate. Algorithm 1 runs on the same records at the same
    claimed epsilon, with noise by relevance (AdLM) and identical noise (ILM).

    With --json: {"methods": [{"method", "epsilon_claimed", "epsilon_proved", "accuracy"}],
    "certificate_unchanged", "audit_violations", "report", "seconds"} and the certificate's totals.
    """
    from adlm.privacy.accounting import Budget

    output = Output(as_json, quiet)
    Budget.of(epsilon, "0")
    require_new(out)
    import torch

    from adlm.audit.runner import Depth, run
    from adlm.data import datasets
    from adlm.mechanism.privatise import privatise
    from adlm.model.fit import fit
    from adlm.model.metrics import measure
    from adlm.model.training import TrainingConfig
    from adlm.privacy.folders import CERTIFICATE
    from adlm.privacy.release import Release
    from adlm.report import write_report
    from adlm.runtime.artefact import canonical, write_file

    start = time.monotonic()
    torch.set_num_threads(1)  # matrices are small
    train, test = datasets.load("digits", "train"), datasets.load("digits", "test")
    methods: list[dict[str, Any]] = []

    def measured(name: str, model: Model) -> dict[str, Any]:
        """Add a row to the table at the end, and print it."""
        figures = measure(model.probabilities(test.x), test.y).to_dict()
        stated = model.certificate.totals.to_dict()
        row = {"method": name} | {key: stated[key] for key in ("epsilon_claimed", "epsilon_proved")}
        methods.append(row | {"accuracy": figures["accuracy"]})
        output.say(f"   {name}: accuracy {figures['accuracy']:.3f} on {len(test)} test records")
        return figures | {"classes": list(train.domain.classes), "of": "digits", "split": "test"}

    output.say(f"1. A release of {len(train)} private records of digits, at epsilon {epsilon}")
    privatise(train.x, train.y, domain=train.domain, epsilon=epsilon).save(out / "release")
    release = Release.load(out / "release")
    totals = release.certificate.totals
    output.say(f"   {totals.sentence()}")

    output.say("2. Models from the release alone; more of them, or more epochs, cost no privacy")
    plans = {"network, 1 epoch": 1, "network, 100 epochs": 100}
    models = {"closed form": fit(release)} | {
        name: fit(release, "mlp", TrainingConfig(epochs=epochs, batch_size=250), draws=3_000)
        for name, epochs in plans.items()
    }
    folders = [out / "release"]
    for name, model in models.items():
        folder = out / name.replace(",", "").replace(" ", "-")
        model.save(folder)
        write_file(folder / "evaluation.json", canonical(measured(name, model)), what="evaluation")
        folders.append(folder)
    unchanged = len({(folder / CERTIFICATE).read_bytes() for folder in folders}) == 1

    output.say("3. The paper's Algorithm 1 on the same records, at the same claimed epsilon")
    for name, allocation in (("AdLM, Algorithm 1", "linear"), ("ILM, identical noise", "identical")):
        measured(name, _algorithm1(allocation, epsilon, train))

    output.say("4. Attacks on this release: each looks for an epsilon above the proved one")
    audit = run(Depth(runs=2_000, evaluations=2, canaries=30), release=out / "release")
    write_file(out / "audit.json", canonical(audit.to_dict()), what="audit")
    output.say(f"   {len(audit.findings)} attacks, {counted(len(audit.violations), 'violation')}")
    report = write_report(out, out / "report.html")
    keys = ("epsilon_claimed", "epsilon_proved")
    shown = [[r["method"], *(f"{r[k]:.3g}" if r[k] else "none" for k in keys), f"{r['accuracy']:.3f}"]
             for r in methods]  # fmt: skip
    output.table(["method", "claimed", "proved", "accuracy"], shown)
    output.result(
        {
            "methods": methods,
            "certificate_unchanged": unchanged,
            "audit_violations": len(audit.violations),
            "report": str(report),
            "seconds": round(time.monotonic() - start, 1),
        }
        | totals.to_dict(),
        f"accuracy {methods[0]['accuracy']:.3f}; {totals.sentence()}; open {report}",
    )


def _algorithm1(allocation: str, epsilon: str, train: Records) -> Model:
    """Train a small network by Algorithm 1; its warnings repeat what the table shows."""
    import adlm.paper
    from adlm.errors import WeakReleaseWarning
    from adlm.model.training import TrainingConfig

    plan = TrainingConfig(epochs=12, batch_size=100)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WeakReleaseWarning)
        return adlm.paper.train(
            "mlp", train.x, train.y, train.domain, epsilon, allocation=allocation, plan=plan
        )[0]


# ---- adlm doctor

USES = {
    "ray": "passes on a cluster: adlm release --engine ray",
    "export": "ONNX files: adlm export, adlm verify of one",
    "baseline": "DP-SGD by Opacus, to compare with, and its audit",
    "docs": "the documentation",
    "dev": "the tests",
}


def doctor(*, as_json: bool = False, quiet: bool = False) -> None:
    """Print versions, threads, devices and folders, and what is missing for which extra.

    Nothing is changed and nothing is fetched. Exit code 1 when something that adlm cannot do without is
    missing: a package of the wrong version, or a folder that cannot be written.

    With --json: {"adlm", "python", "platform", "packages": [{"name", "needed", "found", "fits"}],
    "extras": {NAME: {"for", "missing"}}, "threads": {"processors", "torch", "OMP_NUM_THREADS"}, "devices",
    "folders": [{"name", "path", "writable", "trouble"}], "problems", "well"}.
    """
    import torch

    output = Output(as_json, quiet)
    required, extras = packages()
    places = folders()
    missing = {name: [p["name"] for p in found if not p["fits"]] for name, found in extras.items()}
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    omp = os.environ.get("OMP_NUM_THREADS")
    threads = {"processors": usable, "torch": torch.get_num_threads(), "OMP_NUM_THREADS": omp}
    cards = range(torch.cuda.device_count()) if torch.cuda.is_available() else ()
    devices = ["cpu", *(f"cuda:{i} {torch.cuda.get_device_name(i)}" for i in cards)]
    problems = [
        f"{p['name']} {p['needed']} is needed, {p['found'] or 'none'} is there"
        for p in required
        if not p["fits"]
    ]
    problems += [f"{p['path']} ({p['name']}): {p['trouble']}" for p in places if p["trouble"]]
    if not required:
        problems.append("adlm is on the path but not installed, so what it needs is not known: pip install .")
    output.say(f"adlm {__version__}, Python {platform.python_version()}, {platform.platform()}")
    rows = [[p["name"], p["needed"] or "any", p["found"] or "none"] for p in required]
    output.table(["package", "needed", "found"], rows)
    rows = [[name, USES.get(name, ""), ", ".join(missing[name]) or "nothing"] for name in sorted(missing)]
    output.table(["extra", "for", "missing"], rows)
    output.say(
        f"threads: torch uses {threads['torch']} of {usable} processors (OMP_NUM_THREADS {omp or 'not set'})"
    )
    output.say(f"devices: {', '.join(devices)}")
    rows = [[p["name"], p["path"], "yes" if p["writable"] else f"no: {p['trouble']}"] for p in places]
    output.table(["folder", "path", "writable"], rows)
    output.result(
        {
            "adlm": __version__,
            "python": platform.python_version(),
            "platform": platform.platform(),
            "packages": required,
            "extras": {n: {"for": USES.get(n, ""), "missing": names} for n, names in missing.items()},
            "threads": threads,
            "devices": devices,
            "folders": places,
            "problems": problems,
            "well": not problems,
        },
        "; ".join(problems) or "nothing that adlm needs is missing",
    )
    if problems:
        raise typer.Exit(1)


def packages() -> tuple[list[dict[str, Any]], dict[str, list[dict[str, Any]]]]:
    """Return the requirements of adlm and of each extra; empty when adlm is not installed."""
    from packaging.requirements import Requirement

    try:
        lines = metadata.requires("adlm") or []
    except metadata.PackageNotFoundError:
        return [], {}
    required: list[dict[str, Any]] = []
    extras: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        wanted = Requirement(line)
        of = re.search(r"extra\s*==\s*['\"]([\w-]+)['\"]", str(wanted.marker or ""))
        if wanted.marker is None or wanted.marker.evaluate({"extra": of[1] if of else ""}):
            (extras.setdefault(of[1], []) if of else required).append(_package(wanted))
    return required, extras


def _package(wanted: Requirement) -> dict[str, Any]:
    """Look for an installed package that meets a requirement."""
    found = None
    with contextlib.suppress(metadata.PackageNotFoundError):
        found = metadata.version(wanted.name)
    fits = found is not None and wanted.specifier.contains(found, prereleases=True)
    return {"name": wanted.name, "needed": str(wanted.specifier), "found": found, "fits": fits}


def folders() -> list[dict[str, Any]]:
    """Return the folders that adlm writes to, and whether they are writable; none is created."""
    from adlm.data import datasets
    from adlm.engine.records import cache_folder
    from adlm.privacy.ledger import default_path

    known = {
        "data sets": datasets.cache_folder(next(iter(datasets.CATALOGUE.values()))).parent,
        "features of private records": cache_folder(),
        "ledgers": default_path("x").parent,
        "temporary files": Path(tempfile.gettempdir()),
        "this folder": Path.cwd(),
    }
    found = []
    for name, path in known.items():
        there, trouble = next(parent for parent in (path, *path.parents) if parent.exists()), ""
        try:
            with tempfile.TemporaryFile(dir=there):
                pass
        except OSError as error:
            trouble = f"{error.strerror or error}: {there}"
        found.append({"name": name, "path": str(path), "writable": not trouble, "trouble": trouble})
    return found
