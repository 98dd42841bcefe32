"""Output to a terminal: text from the web, from file names or from libraries cannot control it."""

import io
import os
import shlex
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO, TypeVar

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import ProgressColumn

Item = TypeVar("Item")

_LOOK_EVERY_S = 0.1

_has_bars = False  # of a command; a Python program, in a notebook too, is shown what it asks for


def shown(text: str) -> str:
    r"""Text with control and format characters (line breaks too) and lone surrogates written out, such as `\x1b`."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
        for character in text
    )


def command(verb: str, *arguments: str) -> str:
    """A command as a shell takes it, whatever its paths have in them."""
    return shown(shlex.join(["altalign", verb, *arguments]))


def lines_shown(text: str) -> str:
    """`shown` for text of several lines; its line breaks stay."""
    return "\n".join(map(shown, text.split("\n")))


def stdout() -> "Console":
    """A console for results."""
    return _console(sys.stdout)


def stderr() -> "Console":
    """A console for progress; only results go to standard output."""
    return _console(sys.stderr)


def into(text: io.StringIO) -> "Console":
    """A console whose text is shown later, or not at all."""
    return _console(text)


def _console(file: TextIO) -> "Console":
    from rich.console import Console  # takes a tenth of a second, for which help and errors need not wait

    # in a notebook, too, lines of text
    return Console(file=file, markup=False, highlight=False, emoji=False, force_jupyter=False)


def open_streams() -> None:
    """Make both streams a command's: they take any text, and bars are shown.

    Unencodable characters are written out, and a closed stream discards all.
    """
    global _has_bars
    _has_bars = True
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by whoever called
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115 - it lives as long as the process
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def many(number: int, one: str, more: str = "") -> str:
    """A number with its noun, in the plural (`more`, or with an s) unless the number is 1."""
    return f"{number:,} {one if number == 1 else more or f'{one}s'}"


def bar_columns(counted: str) -> "tuple[ProgressColumn, ...]":
    """The columns of a bar: its name, how much of all is done, the words for what is counted, and times."""
    from rich import progress

    return (
        progress.TextColumn("{task.description:<16}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TextColumn(counted),
        progress.TimeElapsedColumn(),
        progress.TimeRemainingColumn(),
    )


def shows_bars() -> bool:
    """Whether this is a command with a terminal; of processes that train, the first."""
    return _has_bars and stderr().is_terminal and os.environ.get("RANK", "0") == "0"


@contextmanager
def progress_bar(name: str, total: int | None, counted: str) -> Iterator[Callable[..., None]]:
    """A function that is called after each piece of work, or with how many pieces are done since.

    Where a command has a terminal, a bar shows how many of all (`total`; None: that is not known) are done, how many a
    second, and the time left; it goes at the end.
    """
    if not shows_bars() or total == 0:
        yield lambda _=1: None
        return
    from rich.progress import Progress

    begin = time.monotonic()
    columns = bar_columns(f"{counted} {{task.fields[speed]}}")
    with Progress(*columns, console=stderr(), transient=True) as bar:
        task = bar.add_task(name, total=total, speed="")

        def advance(pieces: int = 1) -> None:
            bar.advance(task, pieces)
            a_second = bar.tasks[0].completed / max(1e-3, time.monotonic() - begin)
            bar.update(task, speed=f"{a_second:,.{0 if a_second >= 10 else 1}f}/s")

        yield advance


def await_thread(is_over: threading.Event, name: str, total: int, counted: str, done: Callable[[], int]) -> None:
    """Wait until a thread is done, with the same bar; `done` gives how many pieces of its work are."""
    with progress_bar(name, total, counted) as advance:
        seen, is_there = 0, False
        while not is_there:
            is_there, before = is_over.wait(_LOOK_EVERY_S), seen
            seen = done()
            advance(seen - before)


def followed(items: Iterable[Item], name: str, counted: str) -> Iterator[Item]:
    """The items, one after another, with the same bar: for a loop, which ends it with an error of its body too."""
    total = len(items) if isinstance(items, Sized) else None
    with progress_bar(name, total, counted) as advance:
        for item in items:
            yield item
            advance()
