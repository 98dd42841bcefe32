"""A process that has imported the trainer, and forks itself for each Python that tests start.

`python -m tests.warm.forks SOCKET`. To import the trainer takes nine seconds of a core, a small training less than one:
here it begins with all imported. `tests/warm/client.py` is the process that a test starts.
"""

import atexit
import builtins
import ctypes
import gc
import json
import os
import runpy
import select
import signal
import socket
import sys
import tempfile
import threading
import traceback
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy
import torch

from tests.warm import trainer

_END_WITH_PARENT = 1  # PR_SET_PDEATHSIG, linux/prctl.h


def serve(listener: socket.socket) -> list[str]:
    """Fork for every client, and tell it how the fork has ended; returns in a fork, with its arguments."""
    running: dict[int, tuple[int, socket.socket]] = {}  # processes and clients, by descriptors of each
    while True:
        for ready in select.select([listener.fileno(), *running], [], [])[0]:
            if ready == listener.fileno():
                client, _ = listener.accept()
                said, streams, *_ = socket.recv_fds(client, 1 << 20, 3)
                if not (process := os.fork()):
                    return begun(json.loads(said), streams)
                for stream in streams:
                    os.close(stream)
                running |= dict.fromkeys((client.fileno(), os.pidfd_open(process)), (process, client))
                continue
            if ready not in running:  # the client of a fork that has ended just now
                continue
            process, client = running[ready]
            if ready != client.fileno():
                with suppress(BrokenPipeError):  # it was killed
                    client.send(b"%d" % os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))
                running = {number: of for number, of in running.items() if of[0] != process}
                os.close(ready)
                client.close()
            elif number := client.recv(1):
                os.kill(process, number[0])
            else:
                os.kill(process, signal.SIGKILL)
                del running[ready]


def begun(wanted: dict[str, Any], streams: list[int]) -> list[str]:
    """Take over what the client has of its parent; returns the arguments."""
    os.setsid()  # signals reach the client
    ctypes.CDLL(None).prctl(_END_WITH_PARENT, int(signal.SIGKILL))  # which nobody else would end then
    numpy.random.seed()  # else all forks draw the same
    torch.set_num_threads(1)  # by one thread, for the first time in a fork: threads of a backward race for it
    for number, (name, stream) in enumerate(zip(("stdin", "stdout", "stderr"), streams, strict=True)):
        os.dup2(stream, number)
        os.close(stream)
        text = open(number, "w" if number else "r", errors=getattr(sys, name).errors, closefd=False)  # noqa: SIM115
        text.reconfigure(line_buffering=name == "stderr")
        setattr(sys, name, text)
    os.chdir(wanted["folder"])
    os.environ.clear()
    os.environ.update(wanted["environment"])
    tempfile.tempdir = None  # by the environment, when first asked for
    return wanted["arguments"]


def run(arguments: list[str]) -> None:
    """What Python does for a command line, of the options that tests give."""
    words = list(arguments)
    while words[0] in ("-u", "-W"):
        if words.pop(0) == "-W":
            action, _, category = words.pop(0).partition("::")
            warnings.simplefilter(action, getattr(builtins, category))  # type: ignore[arg-type]
    if words[0] == "-m":
        sys.argv, sys.path[0] = words[1:], str(Path.cwd())
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif words[0] == "-c":
        sys.argv, sys.path[0] = ["-c", *words[2:]], ""
        exec(words[1], {"__name__": "__main__"})
    else:
        sys.argv, sys.path[0] = words, str(Path(words[0]).parent)
        runpy.run_path(words[0], run_name="__main__")


def main() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have had this ignored
    trainer.warm()
    names = [(task / "comm").read_text() for task in Path("/proc/self/task").iterdir()]
    others = [name for name in names if name != "jemalloc_bg_thd\n"]  # which knows of forks
    assert len(others) == 1, f"{others}: what a thread holds would be held in a fork for ever"
    gc.freeze()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(sys.argv[1])
        listener.listen(100)
        sys.stdout.write("\n")
        sys.stdout.flush()
        arguments = serve(listener)
    code: Any = 1
    try:
        run(arguments)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
    except BaseException:
        traceback.print_exc()
    # As Python ends, but that it would take two seconds to free all that was imported.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
