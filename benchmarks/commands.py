"""`adlm experiment` and `adlm bench`, which the command line has in a source checkout alone."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from adlm.cli.console import Output
from adlm.errors import UserError
from adlm.privacy.accounting import parse_epsilon
from benchmarks import catalogue, pages
from benchmarks import synthetic as synthetic_tables
from benchmarks import tables as comparison
from benchmarks.runner import Line

app = typer.Typer()
experiment = typer.Typer(help="Run an experiment by name, side by side with DP-SGD.", no_args_is_help=True)
app.add_typer(experiment, name="experiment", epilog="Example: adlm experiment frontier-mnist")

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
        for e in catalogue.EXPERIMENTS.values()
    ]
    output.result({"experiments": described})
    keys = ("name", "title", "quick_cells", "full_cells")
    rows = [[str(row[key]) for key in keys] for row in described]
    output.table(["name", "question", "trials, quick", "trials, full"], rows)


def _run(name: str, epsilons: str | None, methods: str | None, **options: Any) -> dict[str, Any]:
    budgets = _listed(epsilons)
    for epsilon in budgets or ():
        parse_epsilon(epsilon)
    return catalogue.run_experiment(name, epsilons=budgets, methods=_listed(methods), **options)


def _listed(text: str | None) -> tuple[str, ...] | None:
    """Split an option at its commas; None where it was not given."""
    return None if text is None else tuple(part.strip() for part in text.split(",") if part.strip())


def _show_rows(name: str, rows: list[Line], out: Path, output: Output) -> None:
    """Print the rows of a comparison as JSON, or where they were written."""
    output.result({"experiment": name, "rows": rows}, f"{len(rows)} rows written to {out / f'{name}.md'}")


def _typed() -> str:
    """The command as it was typed, without paths to places outside the results."""
    words = [word for word in sys.argv[1:] if word != "--resume"]
    hidden = ("PATH" if "/" in word and not word.startswith("results/") else word for word in words)
    return " ".join(["adlm", *hidden])


def _given(**options: Any) -> dict[str, Any]:
    """Options that were given; those left out have the defaults of the function."""
    return {name: value for name, value in options.items() if value is not None}


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
        output = Output(as_json, quiet)
        summary = _run(name, epsilons, methods, preset=preset, seeds=seeds, resume=resume, jobs=jobs, out=out)
        output.result(summary, pages.table(summary))
        if summary["tests"] and summary["kind"] != "allocation":
            output.say(pages.tests(summary))
        output.say(f"written to {out / name}; run again with: {summary['command']}")

    command.__doc__ = f"{title}.\n\n{_WRITES.replace('NAME', name)}"
    experiment.command(name, epilog=f"Example: adlm experiment {name} --preset quick --resume")(command)


for _experiment in catalogue.EXPERIMENTS.values():
    _command(_experiment.name, _experiment.title)


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
    methods: Annotated[
        str,
        typer.Option(
            help="Which: public (without privacy), pure and delta (ours), dp-sgd, interpret, diffprivlib."
        ),
    ] = ",".join(comparison.METHODS),
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
    {"experiment", "rows": [{"data", "method", "noise", "epsilon", "runs", "measures": {name: [mean, sd]}}]}.
    """
    given = _given(names=_listed(names), epsilons=_listed(epsilons), methods=_listed(methods))
    pythons = _given(diffprivlib=diffprivlib_python, interpret=interpret_python)
    rows = comparison.run(
        out,
        releases=releases,
        pythons=pythons,
        resume=resume,
        command=_typed(),
        **given,
    )
    _show_rows("tables", rows, out, Output(as_json, quiet))


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
    left out without one. With --json: as for tables.
    """
    given = _given(names=_listed(names), epsilons=_listed(epsilons))
    python, command = diffprivlib_python, _typed()
    rows = comparison.run_numeric(
        out, releases=releases, diffprivlib=python, resume=resume, command=command, **given
    )
    _show_rows("regression", rows, out, Output(as_json, quiet))


@experiment.command("synthetic", epilog="Example: adlm experiment synthetic --names adult --resume")
def synthetic(
    names: Annotated[
        str | None,
        typer.Option(help="Which tables: adult, diabetes130, or any NAME of adlm experiment tables."),
    ] = None,
    releases: Annotated[int, typer.Option(help="Releases for each figure of ours; 0 for none.", min=0)] = 3,
    others: Annotated[int, typer.Option(help="Runs for each figure of MST and AIM; 0 for none.", min=0)] = 1,
    epsilons: Epsilons = None,
    mbi_python: Annotated[
        str | None,
        typer.Option(help="The Python of an environment that has mbi; made by default.", metavar="PATH"),
    ] = None,
    speed: Annotated[bool, typer.Option("--speed", help="Also time a million rows of 15 columns.")] = False,
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
    MST and AIM run in an environment that is made in out/venv-mbi with mbi 2.0.0. With --json: as for tables.
    """
    given = _given(names=_listed(names), epsilons=_listed(epsilons))
    rows = synthetic_tables.run(
        out,
        releases=releases,
        others=others,
        python=mbi_python,
        speed=speed,
        validation=validation,
        resume=resume,
        command=_typed(),
        **given,
    )
    _show_rows("synthetic", rows, out, Output(as_json, quiet))


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

    Tables have their own command: adlm experiment tables. With --json: {"experiments": {name: summary}}.
    """
    output = Output(as_json, quiet)
    summaries, failed = {}, []
    for name in catalogue.EXPERIMENTS:
        try:
            summaries[name] = _run(
                name, None, None, preset=preset, seeds=seeds, resume=resume, jobs=jobs, out=out
            )
        except UserError as error:
            failed.append(f"{name} was not run: {error}")
            continue
        output.say(f"\n{summaries[name]['title']}\n\n{pages.table(summaries[name])}")
    output.result({"experiments": summaries})
    if failed:
        raise UserError("; ".join(failed))


@app.command(epilog="Example: adlm bench --quick")
def bench(
    only: Annotated[
        str | None,
        typer.Option(
            help="Only these: noise, features, photographs, pipeline, growth, reading, engines, wide."
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Less work, with a larger spread.")] = False,
    repeats: Annotated[int, typer.Option(help="Number of interleaved repeats.", min=1)] = 3,
    kymatio_python: Annotated[
        str | None, typer.Option(help="The Python of an environment that has kymatio 0.3.0.", metavar="PATH")
    ] = None,
    against: Annotated[
        Path | None, typer.Option(help="Another checkout, for the rates of features.", metavar="PATH")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for bench.json, a table and a picture.")] = None,
    as_json: bool = False,
    quiet: bool = False,
) -> None:
    """Measure noise, features, training, the whole pipeline and growth, each against others in the same run.

    Only ratios are given, as the median of interleaved repeats with their spread, because times depend on
    the machine. With --json: {"command", "date", "cores", "repeats", "seconds", "ratios": [{"name", "value",
    "low", "high", "note", "detail"}]}.
    """
    from benchmarks.bench import HEADINGS, Scale, run, table_row

    output = Output(as_json, quiet)
    words = ["adlm bench", *(["--quick"] if quick else []), f"--repeats {repeats}"]
    words += [f"--only {only}"] if only else []
    words += ["--kymatio-python PATH"] if kymatio_python else []
    words += [f"--against {against.name}"] if against else []
    scale = Scale(quick, repeats, kymatio_python or sys.executable, against=against)
    result = run(_listed(only) or (), scale, out, " ".join(words))
    output.result(result)
    output.table(HEADINGS, [table_row(entry) for entry in result["ratios"]])
    for entry in result["ratios"]:
        if entry["note"]:
            output.say(f"{entry['name']}: {entry['note']}")
