"""`adlm release`, `adlm release-records` and `adlm pretrain`: what reads private records, and its network."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adlm.cli.console import Output, caution, key_of, pick_device, stamped
from adlm.errors import StoppedError, UserError, WeakReleaseWarning

if TYPE_CHECKING:
    from adlm.domain.table import TableDomain
    from adlm.paper.release import PrivateRecords
    from adlm.paper.relevance import RelevanceNetwork
    from adlm.privacy.accounting import Totals
    from adlm.privacy.ledger import Ledger
    from adlm.privacy.noise import Source
    from adlm.privacy.release import Release

AT_LEAST_1, SEED = typer.Option(min=1), typer.Option(min=0, max=2**32 - 1)


def release(
    file: Annotated[
        str | None,
        "A file or a folder of records; of a table also a glob ('visits/*.parquet'), here or at an address "
        "(s3://, gs://). Needs --domain.",
    ] = None,
    *,
    data: str | None = None,
    domain: Path | None = None,
    epsilon: str = "1",
    delta: Annotated[str, "0: pure epsilon (Laplace or radial noise); such as 1e-5: Gaussian noise."] = "0",
    out: Path = Path("release"),
    neighbours: str | None = None,
    ledger: Path | None = None,
    budget: str | None = None,
    k: Annotated[int | None, "Number of features; the planner's by default."] = None,
    allocation: Annotated[
        str | None, "Images: identical noise over features, or linear or optimal in their relevance."
    ] = None,
    fourier: Annotated[int | None, "Tables: number of random Fourier features."] = None,
    backbone: Annotated[
        str | None,
        "Images and vectors: a public encoder: FILE.onnx, timm:NAME or a folder that transformers saved.",
    ] = None,
    provenance: Annotated[
        str | None, "public if no private record had a part in the --backbone, else private."
    ] = None,
    trained_on: Annotated[str | None, "What the --backbone was trained on; shown in the report."] = None,
    size: Annotated[int | None, AT_LEAST_1] = None,
    limit: Annotated[
        int | None, "Read only LIMIT records (public); under add-remove about so many.", AT_LEAST_1
    ] = None,
    seed: Annotated[int | None, "Repeatable noise. The release is stamped NOT PRIVATE."] = None,
    cache: Annotated[bool, "Cache features of the records on disk."] = False,
    engine: Annotated[str, "Where records are processed: local or ray; the release is the same."] = "local",
    ray_address: Annotated[str | None, "A Ray cluster, such as auto; by default one of this machine."] = None,
    sign: Path | None = None,
    device: str = "auto",
    kind: Annotated[str, "model, to train on; or synthetic, a table that adlm synth draws from."] = "model",
    as_json: bool = False,
    quiet: bool = False,
) -> None:
    """Read private records and make a release: noisy tensors and a certificate.

    Pure epsilon perturbs the loss once and releases its minimum; few images get noisy class sums. With
    --delta, class sums and clipped gradients get Gaussian noise, in rounds. The planner chooses; adlm plan
    shows what. Every charge is in the ledger before its noise is drawn.

    With --json: {"out", "kind", "n", "epsilon_claimed", "epsilon_proved", "delta", "neighbours", "unproved",
    "stamps", "ledger", "charges", "signed_by"}, and "engine" where the release says it.
    """
    if kind not in ("model", "synthetic"):
        raise UserError(
            f"--kind must be model or synthetic, got {kind}; the paper's noisy records are made by adlm "
            "release-records"
        )
    request = Request(file, data, domain, epsilon, delta, out, neighbours, limit, ledger, budget, seed, sign)
    request.check()
    if engine not in ("local", "ray"):
        raise UserError(f"--engine must be one of local, ray (got {engine!r})")
    if cache and (engine == "ray" or file is not None):
        raise UserError("--cache is for --data and the local engine; leave it out")
    declared = request.declared()
    of_table = declared is not None and declared.input is None
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

    def make(ledger: Ledger, source: Source) -> Release:
        from adlm.features import load_backbone
        from adlm.mechanism.privatise import privatise

        options: dict[str, Any] = {"k": k, "size": size, "allocation": allocation, "engine": engine}
        records = None if declared is not None else request.records()
        if of_table:
            options |= {"fourier": fourier or 0} | ({"kind": kind} if kind == "synthetic" else {})
        else:
            options |= {"device": pick_device(device), "cache": cache}
        if backbone is not None:
            origin = {"provenance": provenance or "", "trained_on": trained_on or ""}
            known = records.domain if records is not None else declared.domain if declared else None
            assert known is not None
            options["features"] = load_backbone(backbone, known.shape, **origin, device=options["device"])
        options |= {"ledger": ledger, "source": source, "ray_address": ray_address}
        options |= {"epsilon": epsilon, "delta": delta}
        if records is not None:
            return privatise(records.x, records.labels, records.domain, **options)
        return privatise(file, domain=declared, **options)

    request.run(make, Output(as_json, quiet), size)


def release_records(
    file: Annotated[str | None, "A file or a folder of records. Needs --domain."] = None,
    *,
    data: str | None = None,
    domain: Path | None = None,
    epsilon: str = "1",
    out: Path = Path("release"),
    neighbours: str | None = None,
    ledger: Path | None = None,
    budget: str | None = None,
    allocation: Annotated[
        str, "Noise over features: linear in the relevance (AdLM), optimal, or identical (ILM)."
    ] = "linear",
    split: Annotated[str, "Shares for relevance, features and labels."] = "0.25,0.5,0.25",
    network: Annotated[
        str | None, "The network to train; mlp, paper-mnist or paper-cifar10 by default."
    ] = None,
    batch_size: Annotated[int | None, "|L|; by default 1800 (paper-cifar10: 7200), at most n."] = None,
    delta_h0: Annotated[str, "counted, per-patch (the authors' code) or a number."] = "counted",
    mode: Annotated[str, "economical or literal loss noise."] = "economical",
    loss: Annotated[str, "cross-entropy or square."] = "cross-entropy",
    relevance_network: Annotated[Path | None, "A folder of adlm pretrain; by default one is trained."] = None,
    relevance_provenance: Annotated[
        str | None, "Origin of an unsigned --relevance-network: public or private."
    ] = None,
    trust: Annotated[list[Path] | None, "A public key that signed the --relevance-network."] = None,
    limit: Annotated[int | None, "Read only the first LIMIT records (public).", AT_LEAST_1] = None,
    seed: Annotated[int | None, "Repeatable noise. The release is stamped NOT PRIVATE."] = None,
    sign: Path | None = None,
    as_json: bool = False,
    quiet: bool = False,
) -> None:
    """Release every record with noise, by the paper's Algorithm 1.

    It is for comparison; the certificate states what is claimed and what is proved. Every charge is
    in the ledger before its noise is drawn.

    With --json: the keys of adlm release.
    """
    request = Request(file, data, domain, epsilon, "0", out, neighbours, limit, ledger, budget, seed, sign)
    request.check()
    method = "ilm" if allocation == "identical" else "adlm"
    if method == "ilm" and relevance_network is not None:
        raise UserError("--allocation identical needs no relevances; leave out --relevance-network")
    if relevance_network is None and (relevance_provenance is not None or trust):
        raise UserError("--relevance-provenance and --trust are for a --relevance-network; leave them out")
    delta_rule = _delta_h0(delta_h0)
    declared = request.declared()
    if declared is not None and declared.contributions > 1:
        raise UserError(
            f"a record release protects single records, and a person may have {declared.contributions} of "
            "them here; declare one record a person, or use adlm release"
        )

    def make(ledger: Ledger, source: Source) -> Release:
        import numpy as np

        from adlm.paper import Budgets, RecordOptions, make_release, networks

        records = request.records() if declared is None else _read(str(file), declared)
        shape, name = records.domain.shape, network or networks.proposed(records.domain.shape)
        explained = None
        if method == "adlm":
            explained = _relevance_network(relevance_network, relevance_provenance, trust or [], shape)
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always", WeakReleaseWarning)
            made = make_release(
                records,
                networks.build(name, shape, len(records.domain.classes)),
                Budgets.split(epsilon, tuple(split.split(",")), method),
                min(networks.batch_size(name), np.shape(records.x)[0]) if batch_size is None else batch_size,
                explained=explained,
                options=RecordOptions(delta_rule, allocation, loss, mode),
                ledger=ledger,
                source=source,
            )
        for warning in found:
            caution(str(warning.message))
        return made

    request.run(make, Output(as_json, quiet))


def _relevance_network(
    folder: Path | None, provenance: str | None, trusted: list[Path], shape: tuple[int, ...]
) -> RelevanceNetwork:
    """Read the relevance network, or make a public one."""
    from adlm.paper.relevance import RelevanceNetwork, make_public
    from adlm.privacy.signature import load_public

    if folder is None:
        return make_public(shape, name="mlp", epochs=4)
    known = RelevanceNetwork.load(folder, provenance=provenance, trusted=[load_public(p) for p in trusted])
    if known.shape != shape:
        raise UserError(
            f"the relevance network {folder} is for records of shape {known.shape}, and these have shape "
            f"{shape}; make one for them with adlm pretrain, or leave it out"
        )
    return known


def _read(file: str, declared: TableDomain) -> PrivateRecords:
    """Read all records of a file or a folder."""
    from adlm.data.reading import read_all
    from adlm.paper.release import PrivateRecords

    x, y = read_all(file, declared)
    spec = {"name": "tabular", "table": declared.to_dict()}
    return PrivateRecords(x, y, declared.domain, {} if declared.input is not None else {"spec": spec})


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
    """The options of both commands, as they were written."""

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

    def check(self) -> None:
        """Refuse contradictory or ineffective options, before anything is read."""
        from adlm.data import datasets
        from adlm.domain import NEIGHBOURS
        from adlm.privacy.accounting import Budget

        Budget.of(self.epsilon, self.delta)
        if self.neighbours is not None and self.neighbours not in NEIGHBOURS:
            raise UserError(f"--neighbours must be one of {', '.join(NEIGHBOURS)} (got {self.neighbours!r})")
        if (self.file is None) == (self.data is None):
            raise UserError(
                "give either a file with --domain, or --data NAME; adlm data list shows the names"
            )
        if self.data is not None:
            datasets.domain(self.data)
        if self.data is not None and self.domain is not None:
            raise UserError("--domain is for a file or a folder; leave it out with --data")
        if self.file is not None and self.limit is not None:
            raise UserError("--limit is for --data; leave it out")

    def declared(self) -> TableDomain | None:
        """The domain of a file, with the requested relation; None of a data set by name."""
        from adlm.domain.table import TableDomain

        if self.file is None:
            return None
        if self.domain is None:
            raise UserError("a file needs --domain FILE.toml; adlm domain init drafts one")
        declared = TableDomain.load(self.domain)
        return declared if self.neighbours is None else replace(declared, neighbours=self.neighbours)

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
        rows = window(records.x, records.y, self.limit, neighbours=domain.neighbours, size=size)
        return PrivateRecords(records.x[rows], records.y[rows], domain)

    def run(self, make: Callable[[Ledger, Source], Release], output: Output, size: int | None = None) -> None:
        """Warn of a weak budget, make the release, sign and write it, and print its cost."""
        from adlm.privacy.accounting import Budget, compose
        from adlm.privacy.ledger import Ledger, default_path
        from adlm.privacy.noise import Source
        from adlm.runtime.artefact import require_space

        require_space(self.out, what="release")
        _warn(self.epsilon, self.delta, size)
        key = key_of(self.sign)
        named = self.data or str(self.file)
        if self.file is not None and "://" not in self.file:
            named = str(Path(self.file).resolve())
        ledger = Ledger(
            self.ledger or default_path(named), None if self.budget is None else Budget.parse(self.budget)
        )
        source = Source.system() if self.seed is None else Source.seeded_with(self.seed)
        try:
            release = make(ledger, source)
            release = release if key is None else release.signed(key)
            release.save(self.out)
        except UserError as error:
            if not ledger.made:
                raise
            raise UserError(
                f"{error}; the charge stays in {ledger.path}, for noise may have been drawn"
            ) from error
        except KeyboardInterrupt:
            left = "was written" if self.out.exists() else "was not made; nothing half-written is left behind"
            cost = "stopped; nothing was charged"
            if ledger.made:
                cost = (
                    f"stopped after the charge: {compose(ledger.made).sentence()} stays in {ledger.path}, "
                    "for noise may have been drawn"
                )
            raise StoppedError(f"{cost}, and {self.out} {left}") from None
        self._print(release, ledger, output)

    def _print(self, release: Release, ledger: Ledger, output: Output) -> None:
        """Print what the release has cost, and what its records were charged in total if that is more."""
        from adlm.model.closed_form import sentences, small_classes
        from adlm.privacy.accounting import compose

        certificate, charges, total = release.certificate, ledger.charges, ""
        if len({charge.neighbours for charge in charges}) > 1:
            total = f"; these records have {len(charges)} charges, under two relations that do not add up"
        elif len(charges) > len(ledger.made):
            composed = replace(compose(charges), person=certificate.totals.person)
            total = f"; these records have been charged in total: {composed.sentence()}"
        for words in sentences(small_classes(release)):
            caution(words)
        figures = {
            "out": str(self.out),
            "kind": release.kind,
            "n": certificate.settings.get("n"),
            "stamps": list(certificate.stamps),
            "ledger": str(ledger.path),
            "charges": ledger.count,
            "signed_by": release.signature and release.signature.signer,
        }
        if release.engine is not None:
            figures["engine"] = dict(release.engine)
        output.result(
            figures | certificate.totals.to_dict(),
            f"{self.out}: {certificate.totals.sentence()}{self._used(certificate.totals)}; charged to "
            f"{ledger.path}{total}{stamped(certificate.stamps)}",
        )

    def _used(self, totals: Totals) -> str:
        """Say what was asked for, where rounding made the epsilon another one."""
        from adlm.privacy.accounting import parse_epsilon, show

        if totals.unproved or totals.epsilon_claimed != totals.epsilon_proved:
            return ""
        asked, used = show(parse_epsilon(self.epsilon)), show(totals.epsilon_proved)
        return "" if asked == used else f" (asked {asked}, used {used})"


def _warn(epsilon: str, delta: str, size: int | None) -> None:
    """Warn of a budget that gives hardly any protection, before anything is read."""
    from adlm.privacy.accounting import Budget, TradeOff, gaussian_mu
    from adlm.privacy.certificate import MOST_DELTA, MOST_EPSILON

    budget = Budget.of(epsilon, delta)
    if budget.epsilon > LARGE_EPSILON:
        stamp, what = "", f"the odds can change e^{epsilon} times"
        if budget.epsilon > MOST_EPSILON:
            stamp = f", and above {MOST_EPSILON} the release is stamped NOT PRIVATE"
        elif budget.delta:
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
    *,
    data: str = "mnist",
    network: Annotated[str, "A network by name."] = "mlp",
    epochs: Annotated[int, "Passes over the synthetic records."] = 12,
    out: Path = Path("relevance-network"),
    seed: Annotated[int, "Random seed of the synthetic data and of training.", SEED] = 0,
    sign: Path | None = None,
    as_json: bool = False,
    quiet: bool = False,
) -> None:
    """Train a relevance network on classes drawn from a random process: public, so nothing is charged.

    It learns to classify synthetic classes and reads no record; `adlm release-records` takes it by
    --relevance-network.

    With --json: {"out", "network", "epochs", "provenance"}.
    """
    from adlm.data import datasets

    output, key, shape = Output(as_json, quiet), key_of(sign), datasets.domain(data).shape
    from adlm.paper.relevance import make_public

    trained = make_public(shape, name=network, epochs=epochs, seed=seed)
    trained.save(out, key=key)
    output.result(
        {"out": str(out), "network": network, "epochs": epochs, "provenance": trained.provenance},
        f"{out}: {network}, which saw {trained.classes} synthetic classes and no record; nothing charged",
    )
