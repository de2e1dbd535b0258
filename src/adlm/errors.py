"""Exceptions and warnings that are meant for a person."""

from __future__ import annotations


class UserError(ValueError):
    """A mistake in what was given, as one sentence.

    The sentence says what was given, what is allowed and what to do. The command line prints it on
    standard error and ends with exit code 2; a traceback is never shown for it. In Python it is a
    `ValueError`.

    Examples
    --------
    >>> from adlm import Domain, UserError
    >>> try:
    ...     Domain((1,), lower=90, upper=90, classes=("no", "yes"))
    ... except UserError as error:
    ...     print(error)
    domain.upper must exceed domain.lower (got 90 and 90)
    """


class StoppedError(Exception):
    """A command that its user stopped, as one sentence: what was spent and what was not made."""


class NoisyModelWarning(UserWarning):
    """A model that may be no better than giving every record the largest class: the noise is too large.

    `fit` and the scikit-learn estimators warn of it; the command line prints the same sentence. It stays in
    `model.training["warning"]`, in reports and in model cards.

    Examples
    --------
    >>> import warnings
    >>> from adlm import NoisyModelWarning
    >>> warnings.simplefilter("error", NoisyModelWarning)  # stop rather than go on with such a model
    >>> warnings.simplefilter("default", NoisyModelWarning)
    """


class WeakReleaseWarning(UserWarning):
    """Settings of the paper's Algorithm 1 under which little can be learnt, or little is proved.

    There are three: a batch size |L| above the number of records, noise that is too large to learn from, and
    a proved epsilon that is at least four times the claimed one. `adlm.paper` warns before anything is
    charged, so that turning the warning into an error stops at no cost; the command line prints the same
    sentence.

    Examples
    --------
    >>> import warnings
    >>> from adlm import WeakReleaseWarning
    >>> warnings.simplefilter("error", WeakReleaseWarning)  # stop before such a release is made
    >>> warnings.simplefilter("default", WeakReleaseWarning)
    """
