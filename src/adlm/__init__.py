"""Training on sensitive records under differential privacy: one release, any number of models.

Privatise once, train forever, every epsilon proved and audited. `adlm.paper` has the Adaptive Laplace
Mechanism as published.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from adlm.version import __version__

if TYPE_CHECKING:
    from adlm.domain import Domain
    from adlm.errors import NoisyModelWarning, UserError, WeakReleaseWarning
    from adlm.mechanism.privatise import privatise
    from adlm.model.fit import fit
    from adlm.model.model import Model
    from adlm.model.training import TrainingConfig
    from adlm.privacy.accounting import Budget
    from adlm.privacy.certificate import Certificate
    from adlm.privacy.ledger import Ledger
    from adlm.privacy.release import Release
    from adlm.sklearn.estimators import AdLMClassifier, AdLMRegressor

_PLACES = {
    "AdLMClassifier": "adlm.sklearn.estimators",
    "AdLMRegressor": "adlm.sklearn.estimators",
    "Budget": "adlm.privacy.accounting",
    "Certificate": "adlm.privacy.certificate",
    "Domain": "adlm.domain",
    "Ledger": "adlm.privacy.ledger",
    "Model": "adlm.model.model",
    "TrainingConfig": "adlm.model.training",
    "Release": "adlm.privacy.release",
    "NoisyModelWarning": "adlm.errors",
    "UserError": "adlm.errors",
    "WeakReleaseWarning": "adlm.errors",
    "fit": "adlm.model.fit",
    "privatise": "adlm.mechanism.privatise",
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
