"""`adlm release`, `adlm release-records` and `adlm pretrain`: what reads private records, and its network."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adlm.cli.console import (
    AsJson,
    Device,
    Output,
    Quiet,
    Sign,
    Size,
    caution,
    given,
    key_of,
    pick_device,
    stamped,
)
from adlm.errors import StoppedError, UserError, WeakReleaseWarning

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from adlm.domain.table import TableDomain
    from adlm.paper.release import PrivateRecords
    from adlm.paper.relevance import RelevanceNetwork
    from adlm.privacy.accounting import Totals
    from adlm.privacy.ledger import Ledger
    from adlm.privacy.noise import Source
    from adlm.privacy.release import Release

File = Annotated[
    str | None,
    typer.Argument(
        help="A file or a folder of records; of a table also a glob ('visits/*.parquet'), here or at an "
        "address (s3://, gs://). Needs --domain."
    ),
]
Data = Annotated[str | None, typer.Option(help="A data set by name (see adlm data list).")]
DomainFile = Annotated[Path | None, typer.Option("--domain", help="The TOML file that declares the records.")]
Epsilon = Annotated[str, typer.Option(help="The privacy budget of this release.")]
Out = Annotated[Path, typer.Option(help="Output folder; must not exist.")]
Neighbours = Annotated[str | None, typer.Option(help="replace-one or add-remove.")]
LedgerFile = Annotated[Path | None, typer.Option("--ledger", help="The data set's ledger; made if missing.")]
Total = Annotated[
    str | None, typer.Option("--budget", help="Epsilon (or EPSILON,DELTA), the total budget of the ledger.")
]
Limit = Annotated[
    int | None,
    typer.Option(
        help="Read only LIMIT records (public): the first ones; under add-remove about so many, "
        "chosen by a hash of each.",
        min=1,
    ),
]
Seed = Annotated[int | None, typer.Option(help="Repeatable noise. The release is stamped NOT PRIVATE.")]


def release(
    context: typer.Context,
    file: File = None,
    data: Data = None,
    domain: DomainFile = None,
    epsilon: Epsilon = "1",
    delta: Annotated[
        str,
        typer.Option(
            help="0 for pure epsilon (Laplace or radial noise), or such as 1e-5 for Gaussian noise."
        ),
    ] = "0",
    out: Out = Path("release"),
    neighbours: Neighbours = None,
    ledger: LedgerFile = None,
    budget: Total = None,
    k: Annotated[int | None, typer.Option(help="Number of features; the planner's by default.")] = None,
    allocation: Annotated[
        str | None,
        typer.Option(
            help="Images: identical noise, or noise by the relevance of features: linear or optimal."
        ),
    ] = None,
    fourier: Annotated[
        int | None, typer.Option(help="Tables: number of random Fourier features of the numeric columns.")
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
    size: Size = None,
    limit: Limit = None,
    seed: Seed = None,
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
            help="model, to train on; or synthetic, of a table in a file, which adlm synth draws from."
        ),
    ] = "model",
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
    if kind not in ("model", "synthetic"):
        raise UserError(
            f"--kind must be model or synthetic, got {kind}; the paper's noisy records are made by adlm "
            "release-records"
        )
    request = Request(file, data, domain, epsilon, delta, out, neighbours, limit, ledger, budget, seed, sign)
    request.check(context)
    if engine == "ray" and cache:
        raise UserError("--cache is for the local engine; leave it out with --engine ray")
    if engine not in ("local", "ray"):
        raise UserError(f"--engine must be one of local, ray (got {engine!r})")
    of_table = file is not None and not request.of_inputs
    if (backbone is None) != (provenance is None) or (backbone is None and trained_on is not None):
        raise UserError(
            "--backbone ENCODER needs --provenance public or private, and both --provenance and "
            "--trained-on are for a --backbone"
        )
    if backbone is not None and of_table:
        raise UserError("--backbone is for images and vectors; leave it out for a table")
    for name, of_tables in (("--kind synthetic", kind == "synthetic"), ("--fourier", fourier is not None)):
        if of_tables and not of_table:
            raise UserError(f"{name} is for tables from a file; leave it out")
    job = request.open(size)
    # Only now what is slow to import: a mistake above is refused at once.
    from adlm.features import load_backbone
    from adlm.mechanism.privatise import privatise

    chosen = pick_device(device)
    options: dict[str, Any] = {
        "epsilon": epsilon,
        "delta": delta,
        "ledger": job.ledger,
        "source": job.source,
        "k": k,
        "size": size,
        "allocation": allocation,
        "engine": engine,
        "ray_address": ray_address,
    }

    def make() -> Release:
        if of_table:
            options["fourier"] = fourier or 0
            if kind == "synthetic":
                options["kind"] = kind
            return privatise(file, domain=request.declared(), **options)
        declared = request.declared() if file is not None else None
        records = request.records() if declared is None else None
        known = records.domain if records is not None else declared.domain if declared is not None else None
        assert known is not None
        if backbone is not None:
            origin = {"provenance": provenance or "", "trained_on": trained_on or ""}
            options["features"] = load_backbone(backbone, known.shape, **origin, device=chosen)
        options.update(device=chosen, cache=cache)
        if records is not None:
            return privatise(records.x, records.labels, records.domain, **options)
        return privatise(file, domain=declared, **options)

    job.run(make, output)


def release_records(
    context: typer.Context,
    file: File = None,
    data: Data = None,
    domain: DomainFile = None,
    epsilon: Epsilon = "1",
    out: Out = Path("release"),
    neighbours: Neighbours = None,
    ledger: LedgerFile = None,
    budget: Total = None,
    allocation: Annotated[
        str,
        typer.Option(
            help="Noise over features: linear in the relevance (AdLM), optimal, or identical (ILM, which "
            "needs no relevances)."
        ),
    ] = "linear",
    split: Annotated[str, typer.Option(help="Shares for relevance, features and labels.")] = "0.25,0.5,0.25",
    network: Annotated[
        str | None,
        typer.Option(
            help="The network to be trained. By default mlp for tables, paper-mnist for grey images, "
            "paper-cifar10 for colour images."
        ),
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="|L|. By default 7200 for paper-cifar10, 1800 for every other.")
    ] = None,
    delta_h0: Annotated[
        str, typer.Option(help="counted, per-patch (the authors' code) or a number.")
    ] = "counted",
    mode: Annotated[str, typer.Option(help="economical or literal loss noise.")] = "economical",
    loss: Annotated[str, typer.Option(help="cross-entropy or square.")] = "cross-entropy",
    relevance_network: Annotated[
        Path | None, typer.Option(help="A folder of adlm pretrain; by default one is trained.")
    ] = None,
    relevance_provenance: Annotated[
        str | None,
        typer.Option(
            help="public or private: provenance of a --relevance-network without a trusted signature."
        ),
    ] = None,
    trust: Annotated[
        list[Path] | None,
        typer.Option(help="Public key that signed the --relevance-network.", metavar="PUBKEY"),
    ] = None,
    limit: Limit = None,
    seed: Seed = None,
    sign: Sign = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Read private records and release every one of them with noise, by the paper's Algorithm 1.

    It is for comparison; the certificate states what is claimed and what is proved. Every charge is
    in the ledger before its noise is drawn. With --json: the keys of adlm release.
    """
    output = Output(as_json, quiet)
    request = Request(file, data, domain, epsilon, "0", out, neighbours, limit, ledger, budget, seed, sign)
    request.check(context)
    method = "ilm" if allocation == "identical" else "adlm"
    if method == "ilm" and relevance_network is not None:
        raise UserError("--allocation identical needs no relevances; leave out --relevance-network")
    if relevance_network is None and (relevance_provenance is not None or trust):
        raise UserError("--relevance-provenance and --trust are for a --relevance-network; leave them out")
    job = request.open()
    # Only now what is slow to import: a mistake above is refused at once.
    from adlm.paper import Budgets, RecordOptions, make_release, networks

    records = request.records() if file is None else _from_file(file, request)
    shape, classes = records.domain.shape, len(records.domain.classes)
    network = network or networks.proposed(shape)
    built = networks.build(network, shape, classes)
    budgets = Budgets.split(epsilon, tuple(split.split(",")), method)
    size = networks.batch_size(network) if batch_size is None else batch_size
    options = RecordOptions(_delta_h0(delta_h0), allocation, loss, mode, folder=out)

    def make() -> Release:
        explained = (
            _relevance_network(relevance_network, relevance_provenance, trust or [], shape)
            if method == "adlm"
            else None
        )
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always", WeakReleaseWarning)
            release = make_release(
                records,
                built,
                budgets,
                size,
                explained=explained,
                options=options,
                ledger=job.ledger,
                source=job.source,
            )
        for warning in found:
            caution(str(warning.message))
        return release

    job.run(make, output)


def _relevance_network(
    folder: Path | None, provenance: str | None, trusted: list[Path], shape: tuple[int, ...]
) -> RelevanceNetwork:
    """Read the relevance network, or make a public one."""
    from adlm.paper.relevance import RelevanceNetwork, make_public
    from adlm.privacy.signature import load_public

    keys = [load_public(path) for path in trusted]
    known = (
        make_public(shape, name="mlp", epochs=4)
        if folder is None
        else RelevanceNetwork.load(folder, provenance=provenance, trusted=keys)
    )
    if known.shape != shape:
        raise UserError(
            f"the relevance network {folder} is for records of shape {known.shape}, and these have shape "
            f"{shape}; make one for them with adlm pretrain, or leave it out"
        )
    return known


def _one_record_a_person(request: Request) -> TableDomain:
    """Read the domain file of a record release; a person must have one record."""
    declared = request.declared()
    if declared.contributions > 1:
        raise UserError(
            f"a record release protects single records, and a person may have {declared.contributions} of "
            "them here; declare one record a person, or make a moment release"
        )
    return declared


def _from_file(file: str, request: Request) -> PrivateRecords:
    """Read all records of a file or a folder."""
    from adlm.data.reading import read_all
    from adlm.paper.release import PrivateRecords

    declared = _one_record_a_person(request)
    x, y = read_all(file, declared)
    if declared.input is not None:
        return PrivateRecords(x, y, declared.domain)
    spec = {"name": "tabular", "table": declared.to_dict()}
    return PrivateRecords(x, y, declared.domain, {"spec": spec})


def _delta_h0(text: str) -> str | Fraction:
    """Read --delta-h0: how to count, or a positive number."""
    from adlm.privacy.accounting import parse_epsilon

    if text in ("counted", "per-patch"):
        return text
    try:
        return parse_epsilon(text)
    except UserError:
        raise UserError(
            f"--delta-h0 must be counted, per-patch or a positive number (got {text!r})"
        ) from None


# ---- What both commands do before and after the release is made

LARGE_EPSILON = 10  # from here on the user is warned


@dataclass(frozen=True)
class Request:
    """The options of both commands.

    Attributes
    ----------
    file, data, domain : source of the records: a file or a folder with its domain, or a data set's name.
    epsilon, delta : the budget, as it was written.
    out : the folder to make.
    neighbours, limit : a relation that overrides the declared one, and the number of records to read.
    ledger, budget : the ledger's file, and its total budget.
    seed, sign : repeatable noise, and the key to sign with.
    """

    file: str | None
    data: str | None
    domain: Path | None
    epsilon: str
    delta: str
    out: Path
    neighbours: str | None
    limit: int | None
    ledger: Path | None
    budget: str | None
    seed: int | None
    sign: Path | None

    def check(self, context: typer.Context) -> None:
        """Refuse contradictory or ineffective options, before anything is read."""
        from adlm.domain import NEIGHBOURS
        from adlm.privacy.accounting import Budget

        Budget.of(self.epsilon, self.delta)
        if self.neighbours is not None and self.neighbours not in NEIGHBOURS:
            raise UserError(f"--neighbours must be one of {', '.join(NEIGHBOURS)} (got {self.neighbours!r})")
        if (self.file is None) == (self.data is None):
            raise UserError(
                "give either a file with --domain, or --data NAME; adlm data list shows the names"
            )
        if self.file is None and self.domain is not None:
            raise UserError("--domain is for a file or a folder; leave it out with --data")
        for name in ("limit", "cache") if self.file is not None else ():
            if given(context, name):
                raise UserError(f"--{name} is for --data; leave it out")

    def open(self, size: int | None = None) -> Job:
        """Warn of a weak budget, and prepare the key, disk space, noise source and ledger."""
        from adlm.privacy.accounting import Budget
        from adlm.privacy.ledger import Ledger, default_path
        from adlm.privacy.noise import Source
        from adlm.runtime.artefact import require_space

        require_space(self.out, what="release")
        _warn(self.epsilon, self.delta, size)
        key = key_of(self.sign)
        place = self.ledger or default_path(self.data or _named(self.file))
        ledger = Ledger(place, None if self.budget is None else Budget.parse(self.budget))
        source = Source.system() if self.seed is None else Source.seeded_with(self.seed)
        return Job(self.out, ledger, place, source, key, self.epsilon)

    def records(self) -> PrivateRecords:
        """Read a data set by its name, or about `limit` records of it."""
        from adlm.data import datasets
        from adlm.engine.records import window
        from adlm.paper.release import PrivateRecords

        assert self.data is not None
        records = datasets.load(self.data, "train")
        domain = records.domain
        if self.neighbours is not None:
            domain = replace(domain, neighbours=self.neighbours)
        if self.limit is None:
            return PrivateRecords(records.x, records.y, domain)
        size = datasets.size(self.data, "train")
        window_rows = window(records.x, records.y, self.limit, neighbours=domain.neighbours, size=size)
        return PrivateRecords(records.x[window_rows], records.y[window_rows], domain)

    @property
    def of_inputs(self) -> bool:
        """Whether the file or folder holds images or vectors, by its domain."""
        from adlm.domain.table import TableDomain, load_domain

        declared = None if self.domain is None else load_domain(self.domain)
        return isinstance(declared, TableDomain) and declared.input is not None

    def declared(self) -> TableDomain:
        """Read the domain file of a file, with the requested relation."""
        from adlm.domain.table import TableDomain

        if self.domain is None:
            raise UserError("a file needs --domain FILE.toml; adlm domain init drafts one")
        declared = TableDomain.load(self.domain)
        return declared if self.neighbours is None else replace(declared, neighbours=self.neighbours)


@dataclass(frozen=True)
class Job:
    """A prepared release: its folder, ledger, noise source and key."""

    out: Path
    ledger: Ledger
    place: Path
    source: Source
    key: Ed25519PrivateKey | None
    epsilon: str = ""

    def run(self, make: Callable[[], Release], output: Output) -> None:
        """Make the release, sign and write it, and print its cost."""
        from adlm.model.fit import sentences, small_classes

        try:
            release = self._written(make())
        except UserError as error:
            if self.ledger.made:
                raise UserError(
                    f"{error}; the charge stays in {self.place}, for noise may have been drawn"
                ) from error
            raise
        except KeyboardInterrupt:
            raise StoppedError(self._stopped()) from None
        certificate = release.certificate
        for words in sentences(small_classes(release)):
            caution(words)
        figures = {
            "out": str(self.out),
            "kind": release.kind,
            "n": certificate.settings.get("n"),
            "stamps": list(certificate.stamps),
            "ledger": str(self.place),
            "charges": self.ledger.count,
            "signed_by": release.signature and release.signature.signer,
        }
        if release.engine is not None:
            figures["engine"] = dict(release.engine)
        output.result(
            figures | certificate.totals.to_dict(),
            f"{self.out}: {certificate.totals.sentence()}{self._used(certificate.totals)}; charged to "
            f"{self.place}{self._before()}{stamped(certificate.stamps)}",
        )

    def _used(self, totals: Totals) -> str:
        """Say what was asked for, where rounding made the epsilon another one."""
        from adlm.privacy.accounting import parse_epsilon, show

        if totals.unproved or totals.epsilon_claimed != totals.epsilon_proved:
            return ""
        asked, used = show(parse_epsilon(self.epsilon)), show(totals.epsilon_proved)
        return "" if asked == used else f" (asked {asked}, used {used})"

    def _before(self) -> str:
        """Say what the records have been charged in total, where this was not their first release."""
        from adlm.privacy.accounting import compose

        charges = self.ledger.charges
        if len(charges) <= len(self.ledger.made):
            return ""
        if len({charge.neighbours for charge in charges}) > 1:
            return f"; these records have {len(charges)} charges, under two relations that do not add up"
        return f"; these records have been charged in total: {compose(charges).sentence()}"

    def _written(self, release: Release) -> Release:
        """Sign the release and write it; noisy records are written already, chunk by chunk."""
        from adlm.privacy.signature import FILE
        from adlm.runtime.artefact import canonical, write_file

        release = release if self.key is None else release.signed(self.key)
        if release.kind != "records":
            release.save(self.out)
        elif release.signature is not None:
            write_file(self.out / FILE, canonical(release.signature.to_dict()), what="signature")
        return release

    def _stopped(self) -> str:
        """Return a sentence on the cost of an interrupted release, and whether it was written."""
        from adlm.privacy.accounting import compose

        outcome = (
            f"{self.out} was written"
            if self.out.exists()
            else f"{self.out} was not made; nothing half-written is left behind"
        )
        if not self.ledger.made:
            return f"stopped; nothing was charged, and {outcome}"
        return (
            f"stopped after the charge: {compose(self.ledger.made).sentence()} stays in {self.place}, for "
            f"noise may have been drawn, and {outcome}"
        )


def _named(file: str | None) -> str:
    """Name a data set after its path."""
    return str(file) if file is None or "://" in file else str(Path(file).resolve())


def _warn(epsilon: str, delta: str, size: int | None) -> None:
    """Warn of a budget that gives hardly any protection, before anything is read."""
    from adlm.privacy.accounting import Budget, TradeOff, gaussian_mu
    from adlm.privacy.certificate import MOST_DELTA, MOST_EPSILON

    budget = Budget.of(epsilon, delta)
    if budget.epsilon > LARGE_EPSILON:
        stamp = (
            f", and above {MOST_EPSILON} the release is stamped NOT PRIVATE"
            if budget.epsilon > MOST_EPSILON
            else ""
        )
        what = f"the odds can change e^{epsilon} times"
        if budget.delta and budget.epsilon <= MOST_EPSILON:
            guess = TradeOff(mu=float(gaussian_mu(budget.epsilon, budget.delta))).best_guess()
            what = f"whoever guesses between two neighbours is right up to {guess:.1%} of the time"
        caution(f"epsilon {epsilon} is large: {what}{stamp}")
    most = min(MOST_DELTA, Fraction(1, size)) if size else MOST_DELTA
    if budget.delta >= most:
        caution(
            f"delta {delta} is at least {float(most):g}: so much is met by publishing a random record as it "
            "is; the release is stamped NOT PRIVATE"
        )


def pretrain(
    data: Annotated[str, typer.Option(help="The data set whose domain the network is for.")] = "mnist",
    network: Annotated[str, typer.Option(help="A network by name.")] = "mlp",
    epochs: Annotated[int, typer.Option(help="Passes over the synthetic records.")] = 12,
    out: Annotated[Path, typer.Option(help="Output folder; must not exist.")] = Path("relevance-network"),
    seed: Annotated[
        int, typer.Option(help="Random seed of the synthetic data and of training.", min=0, max=2**32 - 1)
    ] = 0,
    sign: Sign = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Train a relevance network on classes drawn from a random process: public, so nothing is charged.

    It learns to classify synthetic classes and reads no record; `adlm release-records` takes it by
    --relevance-network. With --json: {"out", "network", "epochs", "provenance"}.
    """
    from adlm.data import datasets
    from adlm.paper.relevance import make_public

    output, key = Output(as_json, quiet), key_of(sign)
    trained = make_public(datasets.domain(data).shape, name=network, epochs=epochs, seed=seed)
    trained.save(out, key=key)
    output.result(
        {"out": str(out), "network": network, "epochs": epochs, "provenance": trained.provenance},
        f"{out}: {network}, which saw {trained.classes} synthetic classes and no record; nothing charged",
    )
