"""Algorithm 1, Adaptive Laplace Mechanism, line by line.

What each line costs by the paper and what can be proved of it is in the certificate of the release. Line
numbers are the paper's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy.typing as npt
from torch import nn

from adlm.analyst.examples import from_records
from adlm.analyst.layer_sizes import perturb_bias
from adlm.analyst.training import History, TrainingConfig, train
from adlm.analyst.unsupervised import Unsupervised
from adlm.curator.ledger import Ledger
from adlm.curator.mechanisms.record_release import release, write
from adlm.curator.mechanisms.records import PrivateRecords
from adlm.curator.noise import Source
from adlm.curator.relevance import RelevanceSource, private_relevance
from adlm.errors import UserError
from adlm.privacy.accounting import parse_epsilon
from adlm.privacy.release import Release
from adlm.public.domain import Domain
from adlm.workflows.record_plan import Budgets, check_first, settings_for

__all__ = ["Budgets", "RelevanceSource", "adaptive_laplace_mechanism", "learn", "make_release"]


def make_release(
    D: npt.ArrayLike,
    y: npt.ArrayLike | None,
    domain: Domain,
    network: nn.Module,
    budgets: Budgets,
    *,
    explained: RelevanceSource | None,
    L: int,
    delta_h0: str | int | Fraction = "counted",
    allocation: str = "linear",
    loss: str = "cross-entropy",
    mode: str = "economical",
    rows: int | None = None,
    ledger: Ledger,
    source: Source,
    folder: Path | None = None,
    stamps: tuple[str, ...] = (),
    features: Mapping[str, Any] | None = None,
) -> Release:
    """Lines 1-19, the curator's: read the records once and release them with noise.

    Parameters
    ----------
    D, y : (n, *shape) private records in the units of ``domain``, and their labels; no labels when the
        budgets have no epsilon3.
    network : the network to be trained; only its sizes are read.
    explained : the relevance network; None with ILM budgets.
    delta_h0 : `counted`, `per-patch`, or a number.
    rows : records to average relevances over; all of them when not given.
    folder : write the release there chunk by chunk, and read it from there; in memory when not given.
    features : how the records were encoded, for the certificate; a table's columns.
    """
    # Line 9: Delta_h0 = 2 sum over h0 of d; line 17: Delta_F = M (|h| + |h|^2 / 4)
    settings = settings_for(domain, network, budgets, L, delta_h0, allocation, loss, mode)
    records = PrivateRecords(D, y, domain, features or {}, stamps)
    check_first(records, settings, budgets, explained=explained, rows=rows, ledger=ledger, folder=folder)
    relevance = None
    if budgets.epsilon1 is not None and explained is not None:
        # Lines 1-7: average relevance of each feature, with Lap(Delta_R / eps1)
        relevance = private_relevance(
            explained, D, domain, epsilon=budgets.epsilon1, ledger=ledger, source=source, rows=rows
        )
    # Lines 10-14: eps_j = beta_j eps2; x_ij + (1/|L|) Lap(Delta_h0 / eps_j); b + (1/|L|) Lap(Delta_h0 / eps2)
    # Lines 16-19: phi_l + (1/|L|) Lap(Delta_F / eps3)
    if folder is None:
        return release(records, settings, relevance=relevance, ledger=ledger, source=source)
    write(folder, records, settings, relevance=relevance, ledger=ledger, source=source)
    return Release.load(folder)


def learn(
    release: Release,
    network: nn.Module,
    plan: TrainingConfig,
    *,
    device: str = "auto",
    checkpoints: Path | None = None,
    resume: bool = False,
) -> History:
    """Lines 15 and 20-30, the analyst's: train any network on the release, for as long as one likes.

    Parameters
    ----------
    release : of records, with its certificate.
    network : trained in place.
    plan : how to train.
    device : `auto`, `cpu` or `cuda`.
    checkpoints, resume : file that keeps the run after each epoch, and whether to go on from it.
    """
    # Line 15: the hidden layers stand on the private layer; line 14's bias is its input 0
    perturb_bias(network, release.certificate.domain.shape, float(release.tensors["bias"]))
    if isinstance(network, Unsupervised):  # what learns records before labels does so on released ones
        network.learn_records(release.tensors["x"], seed=plan.seed)
    # Lines 21-29: random batches of noisy records; the loss is the polynomial of the noisy coefficients
    identity = str(release.certificate.to_dict()["digest"])
    return train(
        network,
        from_records(release),
        plan,
        device=device,
        checkpoints=checkpoints,
        resume=resume,
        identity=identity,
    )


def adaptive_laplace_mechanism(
    D: npt.ArrayLike,
    y: npt.ArrayLike,
    domain: Domain,
    H: nn.Module,
    *,
    epsilon1: object | None,
    epsilon2: object,
    epsilon3: object,
    T: int,
    L: int,
    explained: RelevanceSource | None,
    delta_h0: str | int | Fraction = "counted",
    allocation: str = "linear",
    loss: str = "cross-entropy",
    mode: str = "economical",
    plan: TrainingConfig | None = None,
    ledger: Ledger | None = None,
    source: Source | None = None,
    device: str = "auto",
) -> tuple[nn.Module, Release]:
    """Algorithm 1: database D with labels y, hidden layers H, three budgets, T batches of size L.

    Parameters
    ----------
    D, y : (n, *shape) private records in the units of ``domain``, and their labels.
    H : the network to be trained, in place.
    epsilon1, epsilon2, epsilon3 : budgets of relevances, features and labels. ``epsilon1=None`` is ILM
        (Appendix C): identical noise, no relevances, and `explained` is None.
    T, L : training steps and batch size.
    explained : the relevance network and its provenance.
    delta_h0 : `counted`, `per-patch` or a number.
    mode : `literal` puts noise on all three orders of the loss, as lines 18-19 say; `economical` on the one
        that depends on the label.

    Returns the trained network and the release with its certificate: claimed eps1 + eps2 + eps3, and what
    is proved.
    """
    first = None if epsilon1 is None else parse_epsilon(epsilon1, "epsilon1")
    if first is None and explained is not None:
        raise UserError("epsilon1=None is ILM, which asks no relevance network; leave explained at None")
    budgets = Budgets(first, parse_epsilon(epsilon2, "epsilon2"), parse_epsilon(epsilon3, "epsilon3"))
    made = make_release(
        D,
        y,
        domain,
        H,
        budgets,
        explained=explained,
        L=L,
        delta_h0=delta_h0,
        allocation=allocation,
        loss=loss,
        mode=mode,
        ledger=ledger or Ledger(),
        source=source or Source.system(),
    )
    learn(
        made,
        H,
        replace(plan or TrainingConfig(steps=T), epochs=None, steps=T, batch_size=L),
        device=device,
    )
    return H, made
