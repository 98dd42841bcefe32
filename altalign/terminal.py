"""What a terminal is given: nothing that came from the web, from a file's name or from a library acts on it."""

import io
import os
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console


def shown(text: str) -> str:
    r"""Text as a terminal may have it: control and format characters (line breaks too) and lone surrogates written out, as `\x1b`."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
        for character in text
    )


def lines_shown(text: str) -> str:
    """The same, of several lines."""
    return "\n".join(map(shown, text.split("\n")))


def stdout() -> "Console":
    """Where results go."""
    return _console(sys.stdout)


def stderr() -> "Console":
    """Where progress goes: results alone go to standard output."""
    return _console(sys.stderr)


def _console(file: TextIO) -> "Console":
    from rich.console import Console  # a tenth of a second, which help and errors need not wait for

    return Console(file=file, markup=False, highlight=False, emoji=False)


def open_streams() -> None:
    """Make both streams take any text: what an encoding other than UTF-8 does not know is written out, and a closed one takes all."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by whoever called
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115 - it lives as long as the process
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
