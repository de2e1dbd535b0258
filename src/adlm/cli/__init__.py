"""The command line: `adlm`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run `adlm`; a person's mistake ends in one sentence on standard error and exit code 2."""
    from adlm.errors import UserError

    try:
        from adlm.cli.app import app

        app(prog_name="adlm")
    except UserError as error:
        print(f"adlm: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("adlm: stopped; nothing half-written is left behind", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(141)
