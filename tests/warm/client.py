"""Stands for a fork of `tests/warm/forks.py`: hands over what a process has of its parent, and the signals that it
gets, and ends as the fork does. One that is killed takes the fork along.

`python -IS client.py SOCKET ARGUMENTS…`.
"""

import json
import os
import signal
import socket
import sys
from contextlib import suppress

HANDED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as forks:
        forks.connect(sys.argv[1])
        wanted = {"arguments": sys.argv[2:], "environment": dict(os.environ), "folder": os.getcwd()}  # noqa: PTH109
        signal.pthread_sigmask(signal.SIG_BLOCK, HANDED_ON)  # until the handlers are there
        socket.send_fds(forks, [json.dumps(wanted).encode()], [0, 1, 2])

        def hand_on(number: int, _: object) -> None:
            with suppress(OSError):  # the fork has ended just now
                forks.send(bytes([number]))

        for number in HANDED_ON:
            signal.signal(number, hand_on)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDED_ON)
        code = int(forks.recv(64) or b"-9")
    if code < 0:
        if -code in HANDED_ON:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


if __name__ == "__main__":
    main()
