"""Private training on sensitive records by the Adaptive Laplace Mechanism.

Privatise once, train forever, every epsilon proved and audited.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from adlm.version import __version__

if TYPE_CHECKING:
    from adlm.analyst.fit import fit
    from adlm.analyst.model import Model
    from adlm.analyst.training import TrainingConfig
    from adlm.curator.ledger import Ledger
    from adlm.errors import NoisyModelWarning, UserError, WeakReleaseWarning
    from adlm.privacy.budget import Budget
    from adlm.privacy.certificate import Certificate
    from adlm.privacy.release import Release
    from adlm.public.domain import Domain
    from adlm.workflows.privatise import privatise
    from adlm.workflows.sklearn.estimator import AdLMClassifier
    from adlm.workflows.sklearn.regressor import AdLMRegressor

_PLACES = {
    "AdLMClassifier": "adlm.workflows.sklearn.estimator",
    "AdLMRegressor": "adlm.workflows.sklearn.regressor",
    "Budget": "adlm.privacy.budget",
    "Certificate": "adlm.privacy.certificate",
    "Domain": "adlm.public.domain",
    "Ledger": "adlm.curator.ledger",
    "Model": "adlm.analyst.model",
    "TrainingConfig": "adlm.analyst.training",
    "Release": "adlm.privacy.release",
    "NoisyModelWarning": "adlm.errors",
    "UserError": "adlm.errors",
    "WeakReleaseWarning": "adlm.errors",
    "fit": "adlm.analyst.fit",
    "privatise": "adlm.workflows.privatise",
}

__all__ = [
    "AdLMClassifier",
    "AdLMRegressor",
    "Budget",
    "Certificate",
    "Domain",
    "Ledger",
    "Model",
    "NoisyModelWarning",
    "TrainingConfig",
    "Release",
    "UserError",
    "WeakReleaseWarning",
    "__version__",
    "fit",
    "privatise",
]


def __dir__() -> list[str]:
    """List the public names, also those that were not asked for yet."""
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for, so that `adlm --help` does not wait for torch."""
    if name in _PLACES:
        return getattr(importlib.import_module(_PLACES[name]), name)
    raise AttributeError(f"module 'adlm' has no attribute {name!r}")
