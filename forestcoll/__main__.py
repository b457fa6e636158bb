"""`forestcoll` and `python -m forestcoll`: the command line, in a process of its own."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType


def main() -> int:
    """Run the command that the process was started with; returns the exit code.

    Ctrl-C ends it without a traceback from here on: there is nothing to undo before the command
    line is imported, which then listens itself.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)
    from forestcoll.ui.cli import main as run

    return run()


def _leave(number: int, frame: FrameType | None) -> None:
    try:
        os.write(2, b"forestcoll: interrupted\n")
    finally:
        os._exit(130)


if __name__ == "__main__":
    sys.exit(main())
