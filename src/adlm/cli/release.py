"""`adlm release`: read private records, and write a release."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from adlm.cli import release_options as option
from adlm.cli.console import AsJson, Device, Output, Quiet, Sign, pick_device
from adlm.cli.release_job import Request
from adlm.errors import UserError

if TYPE_CHECKING:
    from adlm.features import Features
    from adlm.privacy.release import Release


ENGINES = ("local", "ray")


def release(
    context: typer.Context,
    file: option.File = None,
    data: option.Data = None,
    domain: option.DomainFile = None,
    epsilon: option.Epsilon = "1",
    delta: Annotated[
        str,
        typer.Option(
            help="0 for pure epsilon (Laplace or radial noise), or such as 1e-5 for Gaussian noise."
        ),
    ] = "0",
    out: option.Out = Path("release"),
    method: Annotated[
        str,
        typer.Option(help="adlm, or ilm for identical noise, which refuses --allocation."),
    ] = "adlm",
    neighbours: option.Neighbours = None,
    ledger: option.LedgerFile = None,
    budget: option.Total = None,
    k: Annotated[int | None, typer.Option(help="Number of features; the planner's by default.")] = None,
    allocation: Annotated[
        str | None,
        typer.Option(
            help="Images: identical noise, or noise by the relevance of features: linear or optimal."
        ),
    ] = None,
    fourier: Annotated[
        str | None,
        typer.Option(help="Tables: random Fourier features of the numeric columns.", metavar="N|auto"),
    ] = None,
    backbone: Annotated[
        str | None,
        typer.Option(
            help="Images and vectors: a public encoder, as FILE.onnx, timm:NAME or a folder that "
            "transformers saved.",
            metavar="ENCODER",
        ),
    ] = None,
    provenance: Annotated[
        str | None,
        typer.Option(help="Declare public if no private record had a part in the --backbone, else private."),
    ] = None,
    trained_on: Annotated[
        str | None, typer.Option(help="What the --backbone was trained on; shown in the report.")
    ] = None,
    public_size: Annotated[
        int | None,
        typer.Option(
            "--size",
            "--public-size",
            help="A public guess of the number of records, if that is private.",
            min=1,
        ),
    ] = None,
    limit: option.Limit = None,
    seed: option.Seed = None,
    cache: Annotated[bool, typer.Option("--cache", help="Cache features of the records on disk.")] = False,
    engine: Annotated[
        str, typer.Option(help="Where records are processed: local or ray; the release is the same.")
    ] = "local",
    ray_address: Annotated[
        str | None,
        typer.Option(help="A Ray cluster, such as auto; by default one is started on this machine."),
    ] = None,
    sign: Sign = None,
    device: Device = "auto",
    kind: Annotated[
        str,
        typer.Option(
            help="moments to train on; of a table from a file also synthetic, which adlm synth draws from."
        ),
    ] = "moments",
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Read private records and make a release: noisy tensors and a certificate.

    Pure epsilon perturbs the loss once and releases its minimum; few images get noisy class sums. With
    --delta, class sums and clipped gradients get Gaussian noise, in rounds. The planner chooses; adlm plan
    shows what. Every charge is in the ledger before its noise is drawn.

    With --json: {"out", "kind", "n",
    "epsilon_claimed", "epsilon_proved", "delta", "neighbours", "unproved", "stamps", "ledger", "charges",
    "signed_by"}, and "engine" where the release says it.
    """
    output = Output(as_json, quiet)
    if kind not in ("moments", "synthetic"):
        raise UserError(
            f"--kind must be moments or synthetic, got {kind}; the paper's noisy records are made by adlm "
            "release-records"
        )
    request = Request(file, data, domain, epsilon, delta, out, neighbours, limit, ledger, budget, seed, sign)
    request.check(context, method, ("fourier",))
    if method == "ilm" and allocation not in (None, "identical"):
        raise UserError("--method ilm is identical noise: leave out --allocation, or take --method adlm")
    if engine == "ray" and cache:
        raise UserError("--cache is for the local engine; leave it out with --engine ray")
    if engine not in ENGINES:
        raise UserError(f"--engine must be one of {', '.join(ENGINES)} (got {engine!r})")
    of_table = file is not None and not request.of_inputs
    encoder = Encoder.declared(backbone, provenance, trained_on, of_table=of_table)
    if kind == "synthetic" and not of_table:
        raise UserError("--kind synthetic is for tables from a file; leave it out")
    if fourier is not None and not of_table:
        raise UserError("--fourier is for tables from a file; leave it out")
    job = request.open(public_size)
    # Only now what is slow to import: a mistake above is refused at once.
    from adlm.domain.table import TableDomain
    from adlm.mechanism.privatise import privatise

    chosen = pick_device(device)
    options: dict[str, Any] = {
        "epsilon": epsilon,
        "delta": delta,
        "ledger": job.ledger,
        "source": job.source,
        "k": k,
        "size": public_size,
        "allocation": allocation or ("identical" if method == "ilm" else None),
        "engine": engine,
        "ray_address": ray_address,
    }

    def make() -> Release:
        if of_table:
            options.update(fourier=random_fourier_features(fourier), kind=kind)
            return privatise(file, domain=request.domain_file(), neighbours=neighbours, **options)
        inputs = options | {"device": chosen, "cache": cache}
        if file is not None:
            declared = TableDomain.load(request.domain_file())
            features = None if encoder is None else encoder.load(declared.domain.shape, chosen)
            return privatise(file, None, declared, neighbours=neighbours, features=features, **inputs)
        given = request.records()
        features = None if encoder is None else encoder.load(given.domain.shape, chosen)
        return privatise(given.x, given.labels, given.domain, features=features, **inputs)

    job.run(make, kind, output)


@dataclass(frozen=True)
class Encoder:
    """A requested public encoder, with its declared provenance."""

    name: str
    provenance: str
    trained_on: str

    @classmethod
    def declared(
        cls, name: str | None, provenance: str | None, trained_on: str | None, *, of_table: bool
    ) -> Encoder | None:
        """Check the options of an encoder; None if there is none.

        Parameters
        ----------
        name, provenance, trained_on : the command-line options.
        of_table : whether the records are those of a table, which takes no encoder.
        """
        if (name is None) != (provenance is None) or (name is None and trained_on is not None):
            raise UserError(
                "--backbone ENCODER needs --provenance public or private, and both --provenance and "
                "--trained-on are for a --backbone"
            )
        if name is None or provenance is None:
            return None
        if of_table:
            raise UserError("--backbone is for images and vectors; leave it out for a table")
        return cls(name, provenance, trained_on or "")

    def load(self, shape: tuple[int, ...], device: str) -> Features:
        """Load the encoder, before a record is read."""
        from adlm.features import load_backbone

        return load_backbone(
            self.name, shape, provenance=self.provenance, trained_on=self.trained_on, device=device
        )


def random_fourier_features(text: str | None) -> int | Literal["auto"]:
    """Read --fourier: a number of random Fourier features, `auto`, or none of them."""
    if text is None or text == "auto":
        return "auto" if text else 0
    if not text.isdecimal():
        raise UserError(f"--fourier must be auto or an integer of at least 0 (got {text!r})")
    return int(text)
