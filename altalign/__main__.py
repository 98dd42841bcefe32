"""The process of `altalign`: Ctrl-C is a line from here on, where the rest of it takes a tenth of a second to be imported."""

import os
import signal
import sys
from types import FrameType


def main() -> int:
    """The command line of this process; its exit code."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # and not where whoever started it ignores it
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
