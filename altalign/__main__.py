"""The process of `altalign`. Ctrl-C ends it with one line, even during the tenth of a second that imports take."""

import os
import signal
import sys
from types import FrameType


def main() -> int:
    """Run this process's command line; returns the exit code."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a parent may have set it to be ignored
        signal.signal(signal.SIGINT, _end)
    from altalign import cli

    return cli.main()


def _end(number: int, _frame: FrameType | None) -> None:
    try:
        os.write(2, b"altalign: interrupted; run the same command again, it continues\n")
    finally:
        os._exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
