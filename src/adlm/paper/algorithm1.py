"""Algorithm 1, Adaptive Laplace Mechanism, line by line, and `train`, which runs it on your own network.

The cost of each line, as the paper claims it and as it is proved, is in the certificate of the release. Line
numbers are the paper's.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import numpy.typing as npt
from torch import nn

from adlm.domain import Domain
from adlm.model.fit import declared_origin, fit
from adlm.model.model import Model
from adlm.model.training import TrainingConfig
from adlm.paper import networks
from adlm.paper.release import SPLIT, Budgets, PrivateRecords, RecordOptions, check_first, settings_for
from adlm.paper.release import release as release_records
from adlm.paper.relevance import RelevanceSource, make_public, private_relevance
from adlm.paper.training import train_on_records
from adlm.privacy.ledger import Ledger
from adlm.privacy.noise import Source
from adlm.privacy.release import Release
from adlm.runtime.machine import choose_device

_USUAL = RecordOptions()


def train(
    network: str | nn.Module,
    x: npt.ArrayLike,
    y: npt.ArrayLike,
    domain: Domain,
    epsilon: object,
    *,
    allocation: str = "linear",
    split: tuple[object, object, object] = SPLIT,
    batch_size: int | None = None,
    delta_h0: str | int | Fraction = "counted",
    explained: RelevanceSource | None = None,
    plan: TrainingConfig | None = None,
    provenance: str | None = None,
    ledger: Ledger | None = None,
    seed: int | None = None,
    device: str = "cpu",
) -> tuple[Model, Release]:
    """Run Algorithm 1 on a network: private relevance, noisy records and labels, training.

    The records are read to make the release; the network is trained on the release alone. More training on
    the same release costs no privacy: `adlm.fit(release, another_network)`.

    Parameters
    ----------
    network : any torch module that takes (n, *shape) records in [0, 1] and returns (n, M) scores, trained in
        place; or a network by name, such as "paper-mnist" (`adlm.paper.NETWORKS`).
    x, y : (n, *shape) records in the units of the domain, and their n labels.
    domain : of the records, with neighbours `replace-one`.
    epsilon : the total that the paper claims, eps1 + eps2 + eps3. What is proved is in the certificate.
    allocation : of eps2 over the features: `linear` in the relevance (AdLM, Eq. 16), `optimal`, or
        `identical`, which is ILM: no relevances, and their share goes to the other two.
    split : shares of epsilon for relevances, features and labels.
    batch_size : |L|, by which noise is divided. By default the paper's, 7,200 for its CIFAR-10 networks and
        1,800 for every other, and at most n. Batches of training are the plan's.
    delta_h0 : Delta_h0: `counted` (Lemma 3), `per-patch` (as in the authors' code), or a number.
    explained : the network that relevances explain, fixed before these records were read, and its
        provenance. By default a small one that is trained here on random public classes.
    plan : how to train; by default `default_plan` of n examples, as in `adlm.fit`.
    provenance : of a module's initial weights, as in `adlm.fit`: `public` if no private record had a part in
        them.
    ledger : every charge is written there before its noise is drawn; a new one in memory when not given.
    seed : makes the noise repeatable, and stamps the certificate `NOT PRIVATE: seeded`.
    device : where to train: `auto`, `cpu`, `cuda` or `mps`.

    Returns
    -------
    The model, whose `head` is the trained network, and the release that it was trained on. Both carry the
    certificate: `certificate.totals` has `epsilon_claimed` and `epsilon_proved`.

    Raises
    ------
    UserError : records or labels do not match the domain, or the network does not match them, or a setting is
        not one of those above. Nothing has been charged then.

    Warns
    -----
    WeakReleaseWarning : |L| is above n, the noise is too large to learn from, or the proved epsilon is at
        least four times the claimed one.

    Formal guarantees
    -----------------
    Neighbours: replace-one. Guarantee: the certificate's proved epsilon, of all released numbers together;
    see `RecordMechanism.charges` and `private_relevance`. Training is post-processing.

    Examples
    --------
    >>> import adlm.paper
    >>> from adlm import TrainingConfig
    >>> from adlm.data import datasets
    >>> D = datasets.load("digits", "train")
    >>> model, release = adlm.paper.train(
    ...     "mlp", D.x, D.y, D.domain, epsilon=2, allocation="identical", plan=TrainingConfig(steps=3))
    >>> totals = model.certificate.totals
    >>> float(totals.epsilon_claimed), round(float(totals.epsilon_proved), 2)
    (2.0, 8.54)
    """
    # Training comes after the charge, so what it would refuse is refused here.
    declared_origin(network, provenance)
    choose_device(device)
    records = np.asarray(x)
    body, _ = networks.initialised(network, domain.shape, len(domain.classes), seed=0)
    if batch_size is None:
        batch_size = min(networks.batch_size(networks.name_of(body)), len(records) if records.ndim else 1)
    budgets = Budgets.split(epsilon, split, "ilm" if allocation == "identical" else "adlm")
    options = RecordOptions(delta_h0=delta_h0, allocation=allocation)
    settings_for(domain, body, budgets, batch_size, options)  # before a relevance network is trained
    if explained is None and budgets.epsilon1 is not None:
        explained = make_public(domain.shape, name="mlp", epochs=4)
    noisy = make_release(
        PrivateRecords(records, y, domain),
        body,
        budgets,
        batch_size,
        explained=explained,
        options=options,
        ledger=ledger,
        source=None if seed is None else Source.seeded_with(seed),
    )
    return fit(noisy, network, plan, provenance=provenance, device=device), noisy


def adaptive_laplace_mechanism(
    D: PrivateRecords,
    H: nn.Module,
    budgets: Budgets,
    T: int,
    L: int,
    *,
    explained: RelevanceSource | None,
    options: RecordOptions = _USUAL,
    ledger: Ledger | None = None,
) -> tuple[nn.Module, Release]:
    """Algorithm 1: database D, hidden layers H, budgets eps1, eps2 and eps3, T batches of size L.

    For another optimiser, a device or a seed call its two halves, `make_release` and `train_on_records`.

    Parameters
    ----------
    D : private records with their labels and their domain.
    H : the network to be trained, in place.
    budgets : of relevances, features and labels. Without eps1 it is ILM (Appendix C): identical noise, no
        relevances, and `explained` is None.
    T, L : training steps and batch size.
    explained : the relevance network and its provenance.
    options : the loss, and what the paper leaves open.
    ledger : every charge is written there; a new one in memory when not given.

    Returns the trained network and the release with its certificate: claimed eps1 + eps2 + eps3, and the
    proved epsilon.

    >>> from adlm.paper import Budgets, PrivateRecords, build
    >>> from adlm.data import datasets
    >>> digits = datasets.load("digits", "train")
    >>> D = PrivateRecords(digits.x, digits.y, digits.domain)
    >>> H, ilm = build("mlp", digits.domain.shape, 10), Budgets.split("2", method="ilm")
    >>> H, release = adaptive_laplace_mechanism(D, H, ilm, T=3, L=100, explained=None)
    >>> float(release.certificate.totals.epsilon_claimed)
    2.0
    """
    noisy = make_release(D, H, budgets, L, explained=explained, options=options, ledger=ledger)
    # Lines 15 and 20-30: train any network on the release, for any number of steps
    train_on_records(noisy, H, TrainingConfig(steps=T, batch_size=L))
    return H, noisy


def make_release(
    D: PrivateRecords,
    H: nn.Module,
    budgets: Budgets,
    L: int,
    *,
    explained: RelevanceSource | None,
    options: RecordOptions = _USUAL,
    ledger: Ledger | None = None,
    source: Source | None = None,
) -> Release:
    """Lines 1-19, the curator's: read the records once and release them with noise.

    Parameters
    ----------
    D : private records with their labels and their domain; without labels when the budgets have no eps3.
    H : the network to be trained; only its sizes are read.
    budgets : eps1 (None for ILM), eps2 and eps3.
    L : batch size |L|.
    explained : the relevance network; None with ILM budgets.
    options : the loss, and what the paper leaves open.
    ledger : every charge is written there before its noise is drawn; a new one in memory when not given.
    source : of the noise; the system's when not given.

    Warns
    -----
    WeakReleaseWarning : as for `train`, before anything is charged.
    """
    ledger, source = ledger or Ledger(), source or Source.system()
    # Line 9: Delta_h0 = 2 sum over h0 of d; line 17: Delta_F = M (|h| + |h|^2 / 4)
    settings = settings_for(D.domain, H, budgets, L, options)
    check_first(D, settings, budgets, explained=explained, rows=options.rows, ledger=ledger)
    R = None
    if budgets.epsilon1 is not None and explained is not None:
        # Lines 1-7: average relevance of each feature, with Lap(Delta_R / eps1)
        R = private_relevance(
            explained,
            D.x,
            D.domain,
            epsilon=budgets.epsilon1,
            ledger=ledger,
            source=source,
            rows=options.rows,
        )
    # Lines 10-14: eps_j = beta_j eps2; x_ij + (1/|L|) Lap(Delta_h0 / eps_j); b + (1/|L|) Lap(Delta_h0 / eps2)
    # Lines 16-19: phi_l + (1/|L|) Lap(Delta_F / eps3)
    return release_records(D, settings, relevance=R, ledger=ledger, source=source)
