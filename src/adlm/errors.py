"""The one exception that is meant for a person: a mistake they can put right."""

from __future__ import annotations


class UserError(ValueError):
    """A mistake in what was given, told in one sentence.

    The sentence says what was given, what is allowed and what to do. The command line prints it on
    standard error and ends with exit code 2; a traceback is never shown for it.
    """
