"""`adlm experiment`: run the paper's figures and ours, and go on where a run stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from adlm.cli.console import AsJson, Output, Quiet

app = typer.Typer(
    help="Run an experiment by name, side by side with DP-SGD. Example: adlm experiment frontier-mnist",
    no_args_is_help=True,
)

NAMES = {
    "paper-mnist": "The paper's Fig. 4: accuracy over epsilon and epochs on MNIST, claimed and proved.",
    "paper-cifar10": "The paper's Fig. 5: the same on CIFAR-10.",
    "paper-ablation": "Why Fig. 4 takes what it takes: the authors' reading, one setting changed at a time.",
    "frontier-mnist": "Accuracy over proved epsilon from 0.02 to 8 on MNIST.",
    "frontier-fashion-mnist": "The same on Fashion-MNIST.",
    "frontier-cifar10": "The same on CIFAR-10.",
    "frontier-digits": "The same on scikit-learn's digits: what a small data set can expect.",
    "rule-digits": "The plan of the rule against plans beside it, on scikit-learn's digits.",
    "rule-small": "The same on 6,000 records of MNIST.",
    "rule-five": "The same on five classes of MNIST.",
    "rule-adult": "The same on Adult, a table, which it was not made for.",
    "epochs": "Accuracy and proved epsilon after 1, 10, 100 and 1,000 epochs.",
    "search": "A search of 200 trials on one release against what it costs DP-SGD.",
    "allocation": "Noise by relevance against identical noise, in paired releases.",
}

_WRITES = """Writes OUT/NAME: a line for each finished cell, a summary, a table and figures.

With --json, the summary: {"experiment", "command", "cores", "rows": [{"method", "accuracy", "sd",
"epsilon_claimed", "epsilon_proved", "delta", "neighbours"}], "tests", "published"}.
"""

Preset = Annotated[
    str, typer.Option(help="quick: minutes on two cores; full: the paper's scale.", metavar="quick|full")
]
Epsilons = Annotated[str | None, typer.Option(help="Other epsilons, such as 0.1,0.5.")]
Seeds = Annotated[int | None, typer.Option(help="Other number of seeds.")]
Methods = Annotated[str | None, typer.Option(help="Only these methods, such as moments,psgd-linear.")]
Resume = Annotated[bool, typer.Option("--resume", help="Keep finished cells and go on.")]
Jobs = Annotated[int | None, typer.Option(help="Processes; one a core when not given.", min=1)]
Out = Annotated[Path, typer.Option(help="Folder of results.")]


@app.command("list", epilog="Example: adlm experiment list --json")
def list_(as_json: AsJson = False, quiet: Quiet = False) -> None:
    """List the experiments and their methods.

    With --json: {"experiments": [{"name", "title", "data", "methods", "quick_cells", "full_cells"}]}.
    """
    from adlm.experiments.catalogue import EXPERIMENTS

    output = Output(as_json, quiet)
    described = [
        {
            "name": e.name,
            "title": e.title,
            "data": e.data,
            "methods": list(dict.fromkeys(group.method for group in e.quick)),
            "quick_cells": len(e.trials("quick")),
            "full_cells": len(e.trials("full")),
        }
        for e in EXPERIMENTS.values()
    ]
    output.result({"experiments": described})
    rows = [
        [e.name, e.title, str(len(e.trials("quick"))), str(len(e.trials("full")))]
        for e in EXPERIMENTS.values()
    ]
    output.table(["name", "question", "cells, quick", "cells, full"], rows)


def _run(name: str, **options: Any) -> dict[str, Any]:
    from adlm.experiments.run import run_experiment

    for key in ("epsilons", "methods"):
        if options[key] is not None:
            options[key] = [part.strip() for part in options[key].split(",") if part.strip()]
    for epsilon in options["epsilons"] or ():
        from adlm.privacy.accounting import parse_epsilon

        parse_epsilon(epsilon)
    return run_experiment(name, **options)


def _command(name: str, title: str) -> None:
    def command(
        preset: Preset = "quick",
        epsilons: Epsilons = None,
        seeds: Seeds = None,
        methods: Methods = None,
        resume: Resume = False,
        jobs: Jobs = None,
        out: Out = Path("results"),
        as_json: AsJson = False,
        quiet: Quiet = False,
    ) -> None:
        from adlm.experiments.tabulate import table

        output = Output(as_json, quiet)
        summary = _run(
            name,
            preset=preset,
            epsilons=epsilons,
            seeds=seeds,
            methods=methods,
            resume=resume,
            jobs=jobs,
            out=out,
        )
        output.result(summary, table(summary))
        for test in summary["tests"]:
            output.say(f"{test['found']} ({test['over']})")
        output.say(f"written to {out / name}; run again with: {summary['command']}")

    command.__doc__ = f"{title}\n\n{_WRITES.replace('NAME', name)}"
    app.command(name, epilog=f"Example: adlm experiment {name} --preset quick --resume")(command)


for _name, _title in NAMES.items():
    _command(_name, _title)


@app.command("tables", epilog="Example: adlm experiment tables --releases 10")
def tables(
    names: Annotated[
        str, typer.Option(help="Which tables; also satimage, optdigits, segment, spambase, ring, texture.")
    ] = "adult,diabetes130",
    releases: Annotated[int, typer.Option(help="Fresh releases for each figure.")] = 10,
    epsilons: Epsilons = None,
    compare: Annotated[
        bool, typer.Option("--compare/--ours-alone", help="With the models it is compared with.")
    ] = True,
    diffprivlib_python: Annotated[
        str | None, typer.Option(help="The Python of an environment that has diffprivlib.", metavar="PATH")
    ] = None,
    resume: Resume = False,
    out: Out = Path("results"),
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Tables, by default Adult and Diabetes-130: ours beside logistic regression, gradient boosting, DP-SGD
    and diffprivlib.

    Reads the sets from the folder that ADLM_DATA names; writes OUT/tables.jsonl and OUT/tables.md.
    diffprivlib needs an environment of its own (pip install diffprivlib==0.6.6 scikit-learn==1.6.1) and is
    left out without one. With --json: {"experiment", "rows": [{"data", "method", "noise", "epsilon",
    "accuracy", "auc", ...}]}.
    """
    from dataclasses import asdict

    from adlm.experiments.tables import EPSILONS, run

    output = Output(as_json, quiet)
    budgets = tuple(part.strip() for part in epsilons.split(",")) if epsilons else EPSILONS
    rows = run(
        out,
        names=tuple(part.strip() for part in names.split(",")),
        epsilons=budgets,
        releases=releases,
        compare=compare,
        diffprivlib=diffprivlib_python,
        resume=resume,
    )
    output.result(
        {"experiment": "tables", "rows": [asdict(row) for row in rows]},
        f"{len(rows)} rows written to {out / 'tables.md'}",
    )


@app.command("regression", epilog="Example: adlm experiment regression --names friedman1 --releases 3")
def regression(
    names: Annotated[
        str | None,
        typer.Option(help="Which: diabetes130, adult-age, satimage-pixel, friedman1, load_diabetes; all."),
    ] = None,
    releases: Annotated[int, typer.Option(help="Fresh releases for each figure.", min=1)] = 5,
    epsilons: Epsilons = None,
    diffprivlib_python: Annotated[
        str | None, typer.Option(help="The Python of an environment that has diffprivlib.", metavar="PATH")
    ] = None,
    resume: Resume = False,
    out: Out = Path("results"),
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Numeric targets: ours beside ridge regression, gradient boosting and diffprivlib's linear regression.

    Reads the sets from the folder that ADLM_DATA names; writes OUT/regression.jsonl and OUT/regression.md.
    diffprivlib needs an environment of its own (pip install diffprivlib==0.6.6 scikit-learn==1.6.1) and is
    left out without one. With --json: {"experiment", "rows": [{"data", "method", "noise", "epsilon", "r2",
    "rmse", "mae", ...}]}.
    """
    from dataclasses import asdict

    from adlm.experiments.regression import EPSILONS, run
    from adlm.experiments.regression_split import NAMES as ALL

    output = Output(as_json, quiet)
    rows = run(
        out,
        names=tuple(part.strip() for part in names.split(",")) if names else ALL,
        epsilons=tuple(part.strip() for part in epsilons.split(",")) if epsilons else EPSILONS,
        releases=releases,
        diffprivlib=diffprivlib_python,
        resume=resume,
    )
    output.result(
        {"experiment": "regression", "rows": [asdict(row) for row in rows]},
        f"{len(rows)} rows written to {out / 'regression.md'}",
    )


@app.command("all", epilog="Example: adlm experiment all --preset quick --resume")
def all_(
    preset: Preset = "quick",
    seeds: Seeds = None,
    resume: Resume = False,
    jobs: Jobs = None,
    out: Out = Path("results"),
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Run every experiment by cells; one whose data cannot be had is told of at the end.

    Tables have a command of their own: adlm experiment tables. With --json: {"experiments": {name: summary}}.
    """
    from adlm.errors import UserError
    from adlm.experiments.tabulate import table

    output = Output(as_json, quiet)
    options = {"preset": preset, "epsilons": None, "seeds": seeds, "methods": None}
    summaries, failed = {}, []
    for name in NAMES:
        try:
            summaries[name] = _run(name, **options, resume=resume, jobs=jobs, out=out)
        except UserError as error:
            failed.append(f"{name} was not run: {error}")
            continue
        output.say(f"\n{summaries[name]['title']}\n\n{table(summaries[name])}")
    output.result({"experiments": summaries})
    if failed:
        raise UserError("; ".join(failed))
