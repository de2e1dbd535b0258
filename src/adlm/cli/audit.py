"""`adlm audit`: attack the mechanisms, and print lower bounds on epsilon."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adlm.cli.console import AsJson, Output, Quiet
from adlm.errors import UserError

if TYPE_CHECKING:
    from adlm.audit.runner import Audit


def audit(
    release: Annotated[
        Path | None, typer.Option(help="Audit this release folder instead of adlm itself.", metavar="DIR")
    ] = None,
    subject: Annotated[
        list[str] | None,
        typer.Option(
            help="Audit a third-party mechanism instead: a plug-in in FILE.py, by name; may be repeated.",
            metavar="FILE.py:NAME",
        ),
    ] = None,
    controls: Annotated[
        bool, typer.Option("--controls", help="Also attack negative controls, which are broken on purpose.")
    ] = False,
    runs: Annotated[
        int | None, typer.Option(min=100, max=10**7, help="Runs on each of two neighbouring data sets.")
    ] = None,
    long: Annotated[
        bool, typer.Option("--long", help="More runs, and membership inference; takes minutes.")
    ] = False,
    picture: Annotated[
        Path | None, typer.Option(help="Draw ROC curves and what is proved to this PNG or SVG.")
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Attack every mechanism and compare the lower bounds with the claimed and proved epsilon.

    Each mechanism is run on neighbouring data sets; a lower bound above the proved epsilon is a violation.
    A sound product is called violated at most once in a thousand commands. Exit code 1 on a violation of the
    product, or when a control, which must be violated, is not caught. With --json: {"findings": [{"attack",
    "mechanism", "neighbours", "epsilon_claimed", "epsilon_proved", "delta", "epsilon_lower", "confidence",
    "runs", "verdict", "control", "note", "curve"}], "violations", "controls_missed", "false_alarm_rate",
    "membership", "seconds", "sound"}.
    """
    from adlm.audit.runner import LONG, Depth, draw, run, run_black_box
    from adlm.audit.statistics import HEADINGS

    if picture is not None and picture.suffix not in (".png", ".svg"):
        raise UserError(f"a picture is a .png or an .svg file, got {picture.name!r}")
    output = Output(as_json, quiet)
    depth = LONG if long else Depth()
    if runs is not None:
        depth = replace(depth, runs=runs)
    if subject:
        if release is not None or controls:
            raise UserError("--subject goes without --release and --controls; run them one after the other")
        result = run_black_box(subject, depth.runs)
    else:
        result = run(depth, with_controls=controls, release=release)
    output.table(HEADINGS, [finding.row() for finding in result.findings if not finding.control])
    if controls:
        output.say("\nControls, wrong on purpose: each must be violated")
        output.table(HEADINGS, [finding.row() for finding in result.findings if finding.control])
    for finding in result.findings if subject else ():
        output.say(f"{finding.mechanism}: {finding.note}")
    if result.membership is not None:
        output.say(_membership(result.membership))
    if picture is not None:
        draw(result, picture)
        output.say(f"picture: {picture}")
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


def _membership(figures: dict[str, Any]) -> str:
    def pair(key: str) -> str:
        return " and ".join(f"{e['advantage']:+.3f} ± {e['margin']:.3f}" for e in figures[key])

    first, last = figures["epsilon_dp_sgd"]
    return (
        f"membership inference after 1 and 100 epochs, {figures['shadows']} shadow models: advantage "
        f"{pair('adlm')} on a release of epsilon {figures['epsilon']:g}, {pair('no_privacy')} without "
        f"privacy; DP-SGD's epsilon {first:.2f} and {last:.2f}"
    )
