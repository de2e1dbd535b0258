"""The exceptions that are meant for a person: a mistake they can put right, and a stop they asked for."""

from __future__ import annotations


class UserError(ValueError):
    """A mistake in what was given, told in one sentence.

    The sentence says what was given, what is allowed and what to do. The command line prints it on
    standard error and ends with exit code 2; a traceback is never shown for it.
    """


class StoppedError(Exception):
    """A command that its user stopped, told in one sentence: what was spent and what was not made."""
