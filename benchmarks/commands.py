"""`adlm experiment` and `adlm bench`, which the command line has in a source checkout alone."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from adlm.cli.console import Output
from adlm.errors import UserError
from benchmarks.experiments import TITLES

experiment = typer.Typer(
    help="Run an experiment by name, side by side with DP-SGD. Example: adlm experiment frontier-mnist",
    no_args_is_help=True,
)

_WRITES = """Writes OUT/NAME: a line for each finished trial, a summary, a table and figures.

With --json, the summary: {"experiment", "command", "cores", "rows": [{"method", "accuracy", "sd",
"epsilon_claimed", "epsilon_proved", "delta", "neighbours"}], "tests", "published"}.
"""

Preset = Annotated[
    str, typer.Option(help="quick: minutes on two cores; full: the paper's scale.", metavar="quick|full")
]
Epsilons = Annotated[str | None, typer.Option(help="Epsilons to run, such as 0.1,0.5.")]
Seeds = Annotated[int | None, typer.Option(help="Number of seeds; the preset's by default.")]
Methods = Annotated[str | None, typer.Option(help="Only these methods, such as moments,psgd-linear.")]
Resume = Annotated[bool, typer.Option("--resume", help="Keep finished trials and resume.")]
Jobs = Annotated[
    int | None,
    typer.Option(help="Processes; one per core by default. 0 only rewrites the page of results.", min=0),
]
Out = Annotated[Path, typer.Option(help="Folder of results.")]
Diffprivlib = Annotated[
    str | None, typer.Option(help="The Python of an environment that has diffprivlib.", metavar="PATH")
]


@experiment.command("list", epilog="Example: adlm experiment list --json")
def list_(as_json: bool = False, quiet: bool = False) -> None:
    """List the experiments and their methods.

    With --json: {"experiments": [{"name", "title", "data", "methods", "quick_cells", "full_cells"}]}.
    """
    from benchmarks.experiments.catalogue import EXPERIMENTS

    output = Output(as_json, quiet)
    described: list[dict[str, Any]] = [
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
    keys = ("name", "title", "quick_cells", "full_cells")
    rows = [[str(row[key]) for key in keys] for row in described]
    output.table(["name", "question", "trials, quick", "trials, full"], rows)


def _run(name: str, **options: Any) -> dict[str, Any]:
    from benchmarks.experiments.run import run_experiment

    for key in ("epsilons", "methods"):
        if options[key] is not None:
            options[key] = [part for part in _listed(options[key]) if part]
    for epsilon in options["epsilons"] or ():
        from adlm.privacy.accounting import parse_epsilon

        parse_epsilon(epsilon)
    return run_experiment(name, **options)


def _listed(text: str) -> tuple[str, ...]:
    """Split an option at its commas."""
    return tuple(part.strip() for part in text.split(","))


def _show_rows(name: str, rows: Sequence[Any], out: Path, output: Output) -> None:
    """Print the rows of a comparison as JSON, or where they were written."""
    output.result(
        {"experiment": name, "rows": [asdict(row) for row in rows]},
        f"{len(rows)} rows written to {out / f'{name}.md'}",
    )


def _command(name: str, title: str) -> None:
    def command(
        preset: Preset = "quick",
        epsilons: Epsilons = None,
        seeds: Seeds = None,
        methods: Methods = None,
        resume: Resume = False,
        jobs: Jobs = None,
        out: Out = Path("results"),
        as_json: bool = False,
        quiet: bool = False,
    ) -> None:
        from benchmarks.experiments.tabulate import table

        output = Output(as_json, quiet)
        options = {"preset": preset, "epsilons": epsilons, "seeds": seeds, "methods": methods}
        summary = _run(name, **options, resume=resume, jobs=jobs, out=out)
        output.result(summary, table(summary))
        for test in summary["tests"]:
            output.say(f"{test['found']} ({test['over']})")
        output.say(f"written to {out / name}; run again with: {summary['command']}")

    command.__doc__ = f"{title}\n\n{_WRITES.replace('NAME', name)}"
    experiment.command(name, epilog=f"Example: adlm experiment {name} --preset quick --resume")(command)


for _name, _title in TITLES.items():
    _command(_name, f"{_title}.")


@experiment.command("tables", epilog="Example: adlm experiment tables --releases 10")
def tables(
    names: Annotated[
        str,
        typer.Option(
            help="Which tables: adult, diabetes130, or any NAME with tables/NAME.toml, NAME-train.csv and "
            "NAME-test.csv below ADLM_DATA."
        ),
    ] = "adult,diabetes130",
    releases: Annotated[int, typer.Option(help="Fresh releases for each figure.")] = 10,
    epsilons: Epsilons = None,
    compare: Annotated[
        bool, typer.Option("--compare/--ours-alone", help="Also run the models to compare with.")
    ] = True,
    diffprivlib_python: Diffprivlib = None,
    interpret_python: Annotated[
        str | None, typer.Option(help="The Python of an environment that has interpret.", metavar="PATH")
    ] = None,
    resume: Resume = False,
    out: Out = Path("results"),
    as_json: bool = False,
    quiet: bool = False,
) -> None:
    """Tables, by default Adult and Diabetes-130: ours beside logistic regression, gradient boosting, DP-SGD,
    diffprivlib and the DP-EBM of interpret.

    Reads the sets from the folder that ADLM_DATA names; writes OUT/tables.jsonl and OUT/tables.md.
    diffprivlib (pip install diffprivlib==0.6.6 scikit-learn==1.6.1) and interpret (pip install
    interpret==0.7.8) need environments of their own and are left out without one. With --json:
    {"experiment", "rows": [{"data", "method", "noise", "epsilon", "accuracy", "auc", ...}]}.
    """

    from benchmarks.experiments.tables import EPSILONS, run

    output = Output(as_json, quiet)
    environments = {"diffprivlib": diffprivlib_python, "interpret": interpret_python}
    rows = run(
        out,
        names=_listed(names),
        epsilons=_listed(epsilons) if epsilons else EPSILONS,
        releases=releases,
        compare=compare,
        pythons={name: path for name, path in environments.items() if path is not None},
        resume=resume,
    )
    _show_rows("tables", rows, out, output)


@experiment.command("regression", epilog="Example: adlm experiment regression --names friedman1 --releases 3")
def regression(
    names: Annotated[
        str | None,
        typer.Option(help="Which: diabetes130, adult-age, satimage-pixel, friedman1, load_diabetes; all."),
    ] = None,
    releases: Annotated[int, typer.Option(help="Fresh releases for each figure.", min=1)] = 5,
    epsilons: Epsilons = None,
    diffprivlib_python: Diffprivlib = None,
    resume: Resume = False,
    out: Out = Path("results"),
    as_json: bool = False,
    quiet: bool = False,
) -> None:
    """Numeric targets: ours beside ridge regression, gradient boosting and diffprivlib's linear regression.

    Reads the sets from the folder that ADLM_DATA names; writes OUT/regression.jsonl and OUT/regression.md.
    diffprivlib needs an environment of its own (pip install diffprivlib==0.6.6 scikit-learn==1.6.1) and is
    left out without one. With --json: {"experiment", "rows": [{"data", "method", "noise", "epsilon", "r2",
    "rmse", "mae", ...}]}.
    """
    from benchmarks.experiments.regression import EPSILONS, run
    from benchmarks.experiments.regression_split import NAMES as ALL

    output = Output(as_json, quiet)
    rows = run(
        out,
        names=_listed(names) if names else ALL,
        epsilons=_listed(epsilons) if epsilons else EPSILONS,
        releases=releases,
        diffprivlib=diffprivlib_python,
        resume=resume,
    )
    _show_rows("regression", rows, out, output)


@experiment.command("synthetic", epilog="Example: adlm experiment synthetic --names adult --resume")
def synthetic(
    names: Annotated[
        str | None,
        typer.Option(help="Which tables: adult, diabetes130, or any NAME of adlm experiment tables."),
    ] = None,
    releases: Annotated[int, typer.Option(help="Releases for each figure.", min=1)] = 3,
    aim_releases: Annotated[int, typer.Option(help="Releases for each figure of AIM.", min=0)] = 1,
    epsilons: Epsilons = None,
    compare: Annotated[bool, typer.Option("--compare/--ours-alone", help="Also run MST and AIM.")] = True,
    mbi_python: Annotated[
        str | None,
        typer.Option(help="The Python of an environment that has mbi; made by default.", metavar="PATH"),
    ] = None,
    validation: Annotated[
        bool, typer.Option("--validation", help="Test on held-out training records, to choose settings by.")
    ] = False,
    resume: Resume = False,
    out: Out = Path("results"),
    as_json: bool = False,
    quiet: bool = False,
) -> None:
    """Synthetic tables: what models trained on drawn records get on real ones, ours beside MST and AIM.

    Reads the sets from the folder that ADLM_DATA names; writes OUT/synthetic.jsonl and OUT/synthetic.md.
    MST and AIM run in an environment that is made in out/venv-mbi with mbi 2.0.0. With --json: {"experiment",
    "rows": [{"data", "method", "noise", "epsilon", "runs", "measures": {name: [value of each run]}}]}.
    """
    from benchmarks.experiments.synthetic import EPSILONS, NAMES, run

    output = Output(as_json, quiet)
    rows = run(
        out,
        names=_listed(names) if names else NAMES,
        epsilons=_listed(epsilons) if epsilons else EPSILONS,
        releases=releases,
        aim_releases=aim_releases,
        compare=compare,
        python=mbi_python,
        validation=validation,
        resume=resume,
    )
    _show_rows("synthetic", rows, out, output)


@experiment.command("all", epilog="Example: adlm experiment all --preset quick --resume")
def all_(
    preset: Preset = "quick",
    seeds: Seeds = None,
    resume: Resume = False,
    jobs: Jobs = None,
    out: Out = Path("results"),
    as_json: bool = False,
    quiet: bool = False,
) -> None:
    """Run every experiment that is made of trials; failed ones are named at the end.

    Tables have a command of their own: adlm experiment tables. With --json: {"experiments": {name: summary}}.
    """
    from benchmarks.experiments.tabulate import table

    output = Output(as_json, quiet)
    options = {"preset": preset, "epsilons": None, "seeds": seeds, "methods": None}
    summaries, failed = {}, []
    for name in TITLES:
        try:
            summaries[name] = _run(name, **options, resume=resume, jobs=jobs, out=out)
        except UserError as error:
            failed.append(f"{name} was not run: {error}")
            continue
        output.say(f"\n{summaries[name]['title']}\n\n{table(summaries[name])}")
    output.result({"experiments": summaries})
    if failed:
        raise UserError("; ".join(failed))


def bench(
    only: Annotated[
        str | None,
        typer.Option(
            help="Only these: noise, features, photographs, training, networks, pipeline, growth, tables, "
            "reading, engines, rounds, wide, image, versions."
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Less work, with a larger spread.")] = False,
    repeats: Annotated[int, typer.Option(help="Number of interleaved repeats.", min=1)] = 3,
    kymatio_python: Annotated[
        str | None, typer.Option(help="The Python of an environment that has kymatio 0.3.0.", metavar="PATH")
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(help="Another checkout, to be compared with (photographs, versions).", metavar="PATH"),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for bench.json, a table and a picture.")] = None,
    as_json: bool = False,
    quiet: bool = False,
) -> None:
    """Measure noise, features, training, the whole pipeline and growth, each against others in the same run.

    Only ratios are given, as the median of interleaved repeats with their spread, because times depend on
    the machine. With --json: {"command", "cores", "repeats", "ratios": [{"name", "value",
    "low", "high", "note", "detail"}]}.
    """
    from benchmarks.bench.comparisons import Scale
    from benchmarks.bench.run import HEADINGS, run, table_rows

    output = Output(as_json, quiet)
    words = ["adlm bench", *(["--quick"] if quick else []), f"--repeats {repeats}"]
    words += [f"--only {only}"] if only else []
    words += ["--kymatio-python PATH"] if kymatio_python else []
    words += [f"--against {against.name}"] if against else []
    names = [part.strip() for part in (only or "").split(",") if part.strip()]
    scale = Scale(quick, repeats, kymatio_python or sys.executable, against=against)
    result = run(names, scale, out, " ".join(words))
    output.result(result)
    output.table(HEADINGS, [table_rows(entry) for entry in result["ratios"]])
    for entry in result["ratios"]:
        if entry["note"]:
            output.say(f"{entry['name']}: {entry['note']}")
