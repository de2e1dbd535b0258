"""Algorithm 1, Adaptive Laplace Mechanism, line by line.

The cost of each line, as the paper claims it and as it is proved, is in the certificate of the release. Line
numbers are the paper's.
"""

from __future__ import annotations

from torch import nn

from adlm.analyst.on_records import train_on_records
from adlm.analyst.training import History, TrainingConfig
from adlm.curator.ledger import Ledger
from adlm.curator.mechanisms.record_release import release, write
from adlm.curator.mechanisms.records import PrivateRecords
from adlm.curator.noise import Source
from adlm.curator.relevance import RelevanceSource, private_relevance
from adlm.errors import UserError
from adlm.privacy.release import Release
from adlm.workflows.record_plan import Budgets, RecordOptions, check_first, settings_for

__all__ = [
    "Budgets",
    "PrivateRecords",
    "RecordOptions",
    "RelevanceSource",
    "adaptive_laplace_mechanism",
    "learn",
    "make_release",
]

_USUAL = RecordOptions()


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

    For another optimiser, a device or a seed call `make_release` and `learn`, which are its two halves.

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

    >>> from adlm.analyst.networks import build
    >>> from adlm.public import datasets
    >>> digits = datasets.load("digits", "train")
    >>> D = PrivateRecords(digits.x, digits.y, digits.domain)
    >>> H, ilm = build("mlp", digits.domain.shape, 10), Budgets.split("2", method="ilm")
    >>> H, release = adaptive_laplace_mechanism(D, H, ilm, T=3, L=100, explained=None)
    >>> float(release.certificate.totals.epsilon_claimed)
    2.0
    """
    noisy = make_release(
        D,
        H,
        budgets,
        L,
        explained=explained,
        options=options,
        ledger=ledger or Ledger(),
        source=Source.system(),
    )
    learn(noisy, H, TrainingConfig(steps=T, batch_size=L))
    return H, noisy


def make_release(
    D: PrivateRecords,
    H: nn.Module,
    budgets: Budgets,
    L: int,
    *,
    explained: RelevanceSource | None,
    options: RecordOptions = _USUAL,
    ledger: Ledger,
    source: Source,
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
    ledger : every charge is written there before its noise is drawn.
    source : of the noise.
    """
    if budgets.epsilon1 is None and explained is not None:
        raise UserError("without epsilon1 it is ILM, which asks no relevance network: give explained=None")
    # Line 9: Delta_h0 = 2 sum over h0 of d; line 17: Delta_F = M (|h| + |h|^2 / 4)
    settings = settings_for(D.domain, H, budgets, L, options)
    check_first(D, settings, budgets, explained=explained, options=options, ledger=ledger)
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
    if options.folder is None:
        return release(D, settings, relevance=R, ledger=ledger, source=source)
    write(options.folder, D, settings, relevance=R, ledger=ledger, source=source)
    return Release.load(options.folder)


def learn(release: Release, network: nn.Module, plan: TrainingConfig, *, device: str = "auto") -> History:
    """Lines 15 and 20-30, the analyst's: train any network on the release, for any number of steps.

    Parameters
    ----------
    release : of records, with its certificate.
    network : trained in place.
    plan : how to train.
    device : `auto`, `cpu` or `cuda`.
    """
    return train_on_records(release, network, plan, device=device)
