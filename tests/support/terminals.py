"""Programs on a terminal: a pseudo-terminal of 80 columns, which a program takes for its own."""

import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from fcntl import ioctl
from pathlib import Path

_CONTROLS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """The other end of a terminal: what somebody types, and sees."""

    def __init__(self, file: int):
        self._file = file
        self.seen = ""

    def type(self, text: str) -> None:
        """Keys."""
        os.write(self._file, text.encode())

    def until(self, words: str) -> str:
        """All that was shown since the last call, up to these words; of a program that ended before, an error."""
        while words not in self.seen:
            try:
                came = os.read(self._file, 65_536)
            except OSError:  # nobody has the other end
                came = b""
            if not came:
                raise AssertionError(f"ended without {words!r}: {self.seen}")
            self.seen += came.decode(errors="replace")
        before, _, self.seen = self.seen.partition(words)
        return before

    def rest(self) -> str:
        """What is shown until the program ends."""
        try:
            while came := os.read(self._file, 65_536):
                self.seen += came.decode(errors="replace")
        except OSError:
            pass
        return self.seen


@contextmanager
def terminal(argv: Sequence[str | Path], folder: Path, environment: Mapping[str, str]) -> Iterator[Terminal]:
    """A terminal on which a program runs; at the end it is hung up."""
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    program = subprocess.Popen(
        ["setsid", "--ctty", *argv], cwd=folder, env=dict(environment), stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    try:
        yield Terminal(ours)
    finally:
        os.close(ours)
        program.wait()


def lines_of(folder: Path, *argv: str | Path) -> list[str]:
    """What a command of altalign, or `-c` with a program, shows on a terminal, lines that are written over too."""
    command = [sys.executable, *(() if argv[0] == "-c" else ("-m", "altalign")), *argv]
    with terminal(command, folder, {**os.environ, "TERM": "xterm", "COLUMNS": "80"}) as shown:
        return re.split(r"[\r\n]+", _CONTROLS.sub("", shown.rest()))


def check_bars(lines: Sequence[str], *names: str) -> None:
    """Check that what is named had a bar in 80 columns: done of all, a rate, the time that passed and that is left."""
    for name in names:
        bars = [line for line in lines if line.startswith(f"{name} ")]
        assert max(map(len, bars), default=0) in range(40, 81), (name, lines)
        assert re.search(r"(\d+)/\1 \w+ [\d,.]+/s \d:\d\d:\d\d \d:\d\d:\d\d$", bars[-1]), bars[-1]
