"""Progress of long work, read from the marks of units: the same on any engine and any machine that sees the run."""

import io
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import NamedTuple

from rich.console import Console

from altalign import storage, terminal
from altalign.errors import AltalignError
from altalign.pipelines.run.units import Run, Unit

LINE_EVERY_S = 30.0
LOOK_EVERY_S = 0.5
LOOKING_AT_MOST = 0.05  # of the time: there may be hundreds of thousands of marks
BUNDLE_EVERY_S = 5.0


class Progress(NamedTuple):
    """How far a step of a curation is."""

    step: str
    units_finished: int
    units: int
    rows_finished: int
    rows: int  # 0: not known before
    seconds: float  # of this attempt


# Where progress is shown; or what is told of it instead, in a thread, twice a second.
Shown = Console | Callable[[Progress], None]


@contextmanager
def watched(
    run: Run, step: str, units: Sequence[Unit], shown: Shown, kind: "type[Watch] | None" = None
) -> Iterator[None]:
    """Show how many of a step's units are finished: on a terminal a bar, else a line every 30 s and one at the end."""
    console = shown if isinstance(shown, Console) else terminal.into(io.StringIO())
    watch = (kind or Watch)(run, step, units, console)
    plan = {"units": len(units), "rows": sum(unit.get("rows", 0) for unit in units)}
    storage.write_json(run.work(step, "plan", "plan.json"), plan)
    threads = [threading.Thread(target=work, daemon=True) for work in (watch.look, watch.bundle)]
    if not isinstance(shown, Console):
        threads.append(threading.Thread(target=watch.tell, args=(shown,), daemon=True))
    try:
        for thread in threads:  # a signal that comes here must not leave one behind, in the middle of a file
            thread.start()
        yield
    finally:
        watch.stop.set()
        for thread in threads:
            if thread.ident is not None:
                thread.join()


class Watch:
    """Looks at the marks of units; `look` runs in a thread of its own."""

    def __init__(self, run: Run, step: str, units: Sequence[Unit], console: Console):
        self._run, self._step, self._console = run, step, console
        self._name = step.removesuffix("/units")  # of a stage with one step that counts, or with one that ends it
        self._rows: dict[str, int] = {unit["name"]: unit.get("rows", 0) for unit in units}
        self.stop = threading.Event()
        self._seen, self._looked_s = set[str](), 0.0
        self._begin, self._before = time.monotonic(), self._finished()

    def look(self) -> None:
        """Look at the marks until told to stop."""
        from rich.progress import Progress

        line_at, is_over = self._begin + LINE_EVERY_S, False
        bar = Progress(*terminal.bar_columns("units {task.fields[speed]}"), console=self._console)
        task = bar.add_task(self._name, total=len(self._rows), speed="")
        with bar if self._console.is_terminal else nullcontext():
            while not is_over:
                is_over = self._wait()
                if self._console.is_terminal:
                    finished = self._finished()
                    bar.update(task, completed=len(finished), speed=self._speed(finished))
                elif is_over or time.monotonic() >= line_at:
                    self._line(is_over=is_over)
                    line_at += LINE_EVERY_S

    def bundle(self) -> None:
        """Bundle marks until told to stop."""
        is_over = False
        while not is_over:
            is_over = self.stop.wait(BUNDLE_EVERY_S)
            with suppress(OSError, AltalignError):  # whoever needs a mark reports it
                self._run.marks(self._step).bundle()

    def _wait(self) -> bool:
        """Wait until it is time to look again; returns whether all is over."""
        return self.stop.wait(max(LOOK_EVERY_S, self._looked_s / LOOKING_AT_MOST))

    def _finished(self) -> set[str]:
        """Names of the finished units; those of the last look where the marks cannot be read, which units report."""
        begin = time.monotonic()
        with suppress(OSError, AltalignError):
            self._seen = self._run.marks(self._step).found() & self._rows.keys()
        self._looked_s = time.monotonic() - begin
        return self._seen

    def _speed(self, finished: set[str]) -> str:
        """Rows a second of this attempt; units that an earlier one finished do not count."""
        rows = sum(self._rows[name] for name in finished - self._before)
        return f"{rows / max(1e-3, time.monotonic() - self._begin):,.0f} rows/s" if rows else ""

    def _line(self, *, is_over: bool) -> None:
        finished, elapsed = self._finished(), time.monotonic() - self._begin
        rows, units = sum(self._rows[name] for name in finished), len(self._rows)
        left = (units - len(finished)) * elapsed / max(1, len(finished - self._before))
        parts = [f"{self._name}: {len(finished)} of {units} units", f"{rows:,} rows" if rows else ""]
        parts += [self._speed(finished), f"{elapsed:.1f} s" if is_over else f"about {left:.0f} s left"]
        self._console.print(", ".join(filter(None, parts)), soft_wrap=True)

    def tell(self, report: Callable[[Progress], None]) -> None:
        """Tell a function of the caller's how far the step is, and how it ended; an error in it ends this alone."""
        is_over = False
        while not is_over:
            is_over = self._wait()
            finished, seconds = self._finished(), time.monotonic() - self._begin
            rows = sum(self._rows[name] for name in finished)
            report(Progress(self._step, len(finished), len(self._rows), rows, sum(self._rows.values()), seconds))
