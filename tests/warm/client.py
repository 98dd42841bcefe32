"""Stands for a fork of `tests/warm/forks.py`: hands over what a process has of its parent, and the signals that it
gets, and ends as the fork does. One that is killed takes the fork along.

`python -IS client.py SOCKET ARGUMENTS…`.
"""

import json
import os
import signal
import socket
import sys

HANDED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as forks:
        forks.connect(sys.argv[1])
        wanted = {"arguments": sys.argv[2:], "environment": dict(os.environ), "folder": os.getcwd()}  # noqa: PTH109
        socket.send_fds(forks, [json.dumps(wanted).encode()], [0, 1, 2])
        for number in HANDED_ON:
            signal.signal(number, lambda number, _frame: forks.send(bytes([number])))
        code = int(forks.recv(64) or b"-9")
    if code < 0:
        if -code in HANDED_ON:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


if __name__ == "__main__":
    main()
