"""The paper, *Adaptive Laplace Mechanism* (Phan, Wu, Hu, Dou): Algorithm 1 and all that it needs.

`train` runs it on your own network. `adaptive_laplace_mechanism` is the paper's pseudo-code, whose halves are
`make_release`, which reads records and draws noise, and `train_on_records`, which reads the release alone.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adlm.paper.algorithm1 import adaptive_laplace_mechanism, make_release, train
    from adlm.paper.networks import NETWORKS, build
    from adlm.paper.release import Budgets, PrivateRecords, RecordOptions
    from adlm.paper.relevance import RelevanceNetwork, RelevanceSource, make_public, private_relevance
    from adlm.paper.training import learn_records, train_on_records

_PLACES = {
    "Budgets": "release",
    "NETWORKS": "networks",
    "PrivateRecords": "release",
    "RecordOptions": "release",
    "RelevanceNetwork": "relevance",
    "RelevanceSource": "relevance",
    "adaptive_laplace_mechanism": "algorithm1",
    "build": "networks",
    "learn_records": "training",
    "make_public": "relevance",
    "make_release": "algorithm1",
    "private_relevance": "relevance",
    "train": "algorithm1",
    "train_on_records": "training",
}

__all__ = [
    "Budgets",
    "NETWORKS",
    "PrivateRecords",
    "RecordOptions",
    "RelevanceNetwork",
    "RelevanceSource",
    "adaptive_laplace_mechanism",
    "build",
    "learn_records",
    "make_public",
    "make_release",
    "private_relevance",
    "train",
    "train_on_records",
]


def __dir__() -> list[str]:
    """List the public names, also those that were not asked for yet."""
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for: who trains on a release loads no curator."""
    if name in _PLACES:
        return getattr(importlib.import_module(f"adlm.paper.{_PLACES[name]}"), name)
    raise AttributeError(f"module 'adlm.paper' has no attribute {name!r}")
