"""`python -m adlm` is `adlm`."""

from adlm.cli import program

program()
