"""The command line: `adlm`."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import warnings
from typing import Any, NoReturn

STOPPED = 130  # exit code after Ctrl-C
NOTHING_WRITTEN = "stopped; nothing half-written is left behind"


def program() -> None:
    """Entry point of `adlm` and `python -m adlm`.

    Arrow reads ahead in a thread, which continues when a command has failed. Shutting the interpreter down
    under such a thread aborts the process. So this exits the process directly, after all output is flushed.
    """
    code = 1  # of an unexpected exception

    def leave() -> None:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream.flush()
        os._exit(code)

    atexit.register(leave)  # registered first, so it is called last
    signal.signal(signal.SIGINT, _interrupted)
    try:
        main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        raise


def _interrupted(number: int, frame: object) -> NoReturn:
    """Handle Ctrl-C. An exception in the middle of an import can abort the process, so exit at once there."""
    specs = [getattr(module, "__spec__", None) for module in list(sys.modules.values())]
    if any(getattr(spec, "_initializing", False) for spec in specs):
        os.write(2, f"adlm: {NOTHING_WRITTEN}\n".encode())
        os._exit(STOPPED)
    raise KeyboardInterrupt


def main() -> None:
    """Run `adlm`; a user error ends in one sentence on standard error and exit code 2."""
    import typer

    from adlm.errors import NoisyModelWarning, StoppedError, UserError

    warnings.simplefilter("ignore", NoisyModelWarning)  # commands print it with their figures
    try:
        from adlm.cli.app import app

        code = app(prog_name="adlm", standalone_mode=False)
        if code == STOPPED:  # typer's exit code for Ctrl-C
            raise KeyboardInterrupt
        sys.exit(code)
    except StoppedError as stopped:
        print(f"adlm: {stopped}", file=sys.stderr)
        sys.exit(STOPPED)
    except UserError as error:
        print(f"adlm: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)
    except typer.TyperException as error:
        _refuse(error)
    except typer.Abort:
        sys.exit(1)
    except KeyboardInterrupt:
        print(f"adlm: {NOTHING_WRITTEN}", file=sys.stderr)
        sys.exit(STOPPED)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(141)


def _refuse(error: Any) -> NoReturn:
    """Exit with one sentence about an unknown option or command."""
    context = error.ctx
    if type(error).__name__ == "NoArgsIsHelpError":  # a group without a command: show its help
        error.show()
    else:
        where = context.command_path if context is not None else "adlm"
        message = " ".join(error.format_message().split()).rstrip(".")
        print(f"adlm: {message}; see {where} --help", file=sys.stderr)
    sys.exit(2)
