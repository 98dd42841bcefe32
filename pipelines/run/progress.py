"""Progress of long work, read from the marks of units: the same on any engine and any machine that sees the run."""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import cast

from rich.console import Console

from altalign import storage
from altalign.errors import AltalignError
from altalign.pipelines.run.units import Run, Unit

LINE_EVERY_S = 30.0
LOOK_EVERY_S = 0.5


@contextmanager
def watched(
    run: Run, step: str, units: Sequence[Unit], console: Console, kind: "type[Watch] | None" = None
) -> Iterator[None]:
    """Show how many of a step's units are finished: on a terminal a bar, else a line every 30 s and one at the end."""
    watch = (kind or Watch)(run, step, units, console)
    plan = {"units": len(units), "rows": sum(map(_rows_of, units))}
    storage.write_json(run.work(step, "plan", "plan.json"), plan)
    thread = threading.Thread(target=watch.look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        watch.stop.set()
        thread.join()


def _rows_of(unit: Unit) -> int:
    return cast(dict[str, int], unit).get("rows", 0)


class Watch:
    """Looks at the marks of units; `look` runs in a thread of its own."""

    def __init__(self, run: Run, step: str, units: Sequence[Unit], console: Console):
        self._run, self._step, self._console = run, step, console
        self._name = step.removesuffix("/units")  # of a stage with one step that counts, or with one that ends it
        self._rows: dict[str, int] = {unit["name"]: _rows_of(unit) for unit in units}
        self.stop = threading.Event()
        self._seen: set[str] = set()
        self._begin, self._before = time.monotonic(), self._finished()

    def look(self) -> None:
        """Look at the marks until told to stop."""
        if self._console.is_terminal:
            self._bar()
            return
        line_at = self._begin + LINE_EVERY_S
        while not self.stop.wait(LOOK_EVERY_S):
            if time.monotonic() >= line_at:
                self._line()
                line_at += LINE_EVERY_S
        self._line()

    def _finished(self) -> set[str]:
        """Names of the finished units; those of the last look where the marks cannot be read, which units report."""
        with suppress(OSError, AltalignError):
            self._seen = set(self._run.finished(self._step)) & set(self._rows)
        return self._seen

    def _has_failed(self) -> bool:
        with suppress(OSError, AltalignError):
            return storage.exists(self._run.path("log", "trouble.json"))
        return False

    def _speed(self, finished: set[str]) -> str:
        """Rows a second of this attempt; units that an earlier one finished do not count."""
        rows = sum(self._rows[name] for name in finished - self._before)
        return f"{rows / max(1e-3, time.monotonic() - self._begin):,.0f} rows/s" if rows else ""

    def _line(self) -> None:
        finished, elapsed = self._finished(), time.monotonic() - self._begin
        rows = sum(self._rows[name] for name in finished)
        left = (len(self._rows) - len(finished)) * elapsed / max(1, len(finished - self._before))
        parts = [f"{self._name}: {len(finished)} of {len(self._rows)} units"]
        parts += [f"{rows:,} rows" if rows else "", self._speed(finished)]
        parts.append(f"{elapsed:.1f} s" if self.stop.is_set() else f"about {left:.0f} s left")
        if not self.stop.is_set() and self._has_failed():
            parts.append("a unit failed, the engine tries it again (`altalign status` says why)")
        self._console.print(", ".join(part for part in parts if part), soft_wrap=True)

    def _bar(self) -> None:
        from rich import progress

        columns = (
            progress.TextColumn("{task.description:<16}"),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TextColumn("units {task.fields[speed]}"),
            progress.TimeElapsedColumn(),
            progress.TimeRemainingColumn(),
        )
        with progress.Progress(*columns, console=self._console) as bar:
            task = bar.add_task(self._name, total=len(self._rows), speed="")
            is_over = False
            while not is_over:
                is_over = self.stop.wait(LOOK_EVERY_S)
                finished = self._finished()
                bar.update(task, completed=len(finished), speed=self._speed(finished))
