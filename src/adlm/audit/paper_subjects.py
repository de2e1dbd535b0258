"""The paper's mechanisms as subjects of the audit: noisy records, private relevances, Algorithm 1."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import torch
from torch import nn

from adlm.audit.subject import Reals, Records, Subject
from adlm.curator.ledger import Ledger
from adlm.curator.mechanisms.record_release import release as release_records
from adlm.curator.mechanisms.records import PrivateRecords, Settings
from adlm.curator.noise import Source
from adlm.curator.relevance import PrivateRelevance, RelevanceSource, private_relevance
from adlm.privacy.accounting import Charge
from adlm.public.domain import Domain


def of_records(
    name: str, settings: Settings, domain: Domain, *, focus: int | None, relevance: Reals | None = None
) -> Subject:
    """Audit a record release: the paper's features and label coefficients, for given relevances.

    Parameters
    ----------
    name : of the subject.
    settings, domain : of the release.
    focus : the charge that the search looks at; None for all.
    relevance : (d,) relevances; None for identical noise.
    """
    relevances = None if relevance is None else PrivateRelevance(relevance, (), {})

    def run(data: Records, ledger: Ledger, source: Source) -> tuple[Charge, ...]:
        private = PrivateRecords(data.values, data.codes, domain)
        release = release_records(private, settings, relevance=relevances, ledger=ledger, source=source)
        return release.certificate.charges

    covers = (None, 0, *(1 for _ in settings.orders))
    return Subject(name, domain.neighbours, run, covers, domain.size, len(domain.classes), focus, box=True)


def _network(width: int) -> nn.Module:
    """A public relevance network: its weights come from a fixed seed."""
    generator = torch.Generator().manual_seed(0)
    network = nn.Sequential(nn.Linear(width, 8), nn.ReLU(), nn.Linear(8, 2))
    for parameter in network.parameters():
        nn.init.normal_(parameter, generator=generator)
    return network


def public_relevance(
    network: nn.Module,
    data: Records,
    domain: Domain,
    epsilon: Fraction,
    ledger: Ledger,
    source: Source,
    sensitivity: str = "paper",
) -> PrivateRelevance:
    """Release relevances by a network that is declared public.

    Parameters
    ----------
    network : the relevance network.
    data, domain : the records, and their declared domain.
    epsilon : of the relevances.
    ledger, source : the ledger to charge, and the noise source.
    sensitivity : `paper` or `tight`.
    """
    return private_relevance(
        RelevanceSource(network, "public"),
        data.values,
        domain,
        epsilon=epsilon,
        ledger=ledger,
        source=source,
        sensitivity=sensitivity,
    )


def of_relevance(name: str, epsilon: Fraction, width: int, sensitivity: str) -> Subject:
    """Audit the private relevance: a network fixed beforehand, drawn from a fixed seed.

    Parameters
    ----------
    name : of the subject.
    epsilon : of the relevances.
    width : number of features.
    sensitivity : `paper` or `tight`.
    """
    domain = Domain((width,), 0.0, 1.0, ("a", "b"))
    network = _network(width)

    def run(data: Records, ledger: Ledger, source: Source) -> tuple[Charge, ...]:
        return public_relevance(network, data, domain, epsilon, ledger, source, sensitivity).charges

    return Subject(name, "replace-one", run, (0,), width, tight=False, box=True)


def of_algorithm1(name: str, width: int) -> Subject:
    """Audit the whole of Algorithm 1: relevance, then records and coefficients with noise by relevance."""
    domain, network = Domain((width,), 0.0, 1.0, ("a", "b")), _network(width)
    settings = replace(paper_settings(), allocation="linear", delta_h0=Fraction(1800))

    def run(data: Records, ledger: Ledger, source: Source) -> tuple[Charge, ...]:
        relevance = public_relevance(network, data, domain, Fraction(1, 2), ledger, source)
        private = PrivateRecords(data.values, data.codes, domain)
        release = release_records(private, settings, relevance=relevance, ledger=ledger, source=source)
        return release.certificate.charges

    return Subject(name, "replace-one", run, (0, None, 1, 2), width, tight=False, box=True)


def paper_settings(epsilon2: Fraction = Fraction(1, 50), epsilon3: Fraction = Fraction(1, 2)) -> Settings:
    """The record release in the paper's MNIST setting, with the authors' Delta_h0 = 9,800."""
    return Settings(
        epsilon2=epsilon2,
        epsilon3=epsilon3,
        batch_size=1800,
        delta_h0=Fraction(9800),
        delta_h0_rule="per-patch",
        hidden=25,
        allocation="identical",
    )


def image_domain(classes: int = 10) -> Domain:
    """28 by 28 values and ten classes: the shape of the paper's MNIST."""
    return Domain((28, 28), 0.0, 1.0, tuple(map(str, range(classes))))
