"""How a run shows itself: its funnel as text, and with thumbnails as HTML of a notebook."""

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.table import Column, Table

from altalign import terminal
from altalign.audit import rows
from altalign.audit.report import FOLDER, funnel, galleries
from altalign.audit.report.galleries import Card, Galleries
from altalign.audit.run_folder import RunFolder
from altalign.data.reasons import KEPT
from altalign.pages import frame, page_text
from altalign.rules import reason_words

CARDS = 12  # of the kept samples, below the funnel
BYTES_AT_MOST = 3_000_000  # of pictures in one output: notebooks are files, too


@dataclass(frozen=True, repr=False)
class Gallery:
    """Samples of one reason, or of what was kept, chosen by a hash of their content; a notebook shows the pictures.

    Attributes:
        reason: the reason, or "kept".
        about: the rule in a sentence, with its setting; empty of what was kept.
        rows: how many there are in all.
        cards: the samples.
    """

    reason: str
    about: str
    rows: int
    cards: list[Card]

    def __len__(self) -> int:
        return len(self.cards)

    def __repr__(self) -> str:
        about = f": {self.about.replace('`', '')}" if self.about else ""
        lines = [f"{self.reason}, {len(self):,} of {self.rows:,}{about}"]
        lines += [
            f"  {card.caption} ({', '.join(f'{name} {value}' for name, value in card.measured)})" for card in self.cards
        ]
        return "\n".join(map(terminal.shown, lines))

    def _repr_html_(self) -> str:
        return _rendered("notebook_gallery.html", gallery=self)


def gallery(run: RunFolder, reason: str) -> Gallery:
    """The gallery of a reason; empty where it dropped nothing that was sampled.

    Raises UsageError: there is no such reason, or the run is not finished.
    """
    name = rows.check_reason(reason, KEPT)
    run.check_finished("it has no gallery yet")
    return _gallery(run, name, rows.by_reason(rows.counts(run)))


def text(run: RunFolder) -> str:
    """The funnel in lines of 80 characters or fewer, below the run's folder."""
    if not run.is_finished:
        return "\n".join([f"{terminal.shown(run.folder)}: not finished", *_stages(run)])
    out = io.StringIO()
    console = terminal.into(out)
    console.width = 80
    table = Table("after", *(Column(name, justify="right") for name in _COLUMNS), box=None, pad_edge=False)
    for cells in _funnel(funnel.steps(run, rows.counts(run))):
        table.add_row(*(cell.replace("\u2009", " ") for cell in cells))  # thin spaces are for pages
    console.print(table)
    lines = [f"{terminal.shown(run.folder)}: finished", *out.getvalue().splitlines()]
    return "\n".join(line.rstrip() for line in lines)


def html(run: RunFolder) -> str:
    """The funnel as a table, and thumbnails of some kept samples."""
    if not run.is_finished:
        return _rendered("notebook_run.html", run=run, stages=_stages(run), steps=[], columns=_COLUMNS, kept=None)
    counts = rows.counts(run)
    steps = funnel.steps(run, counts)
    widths = [100 * step.rows / max(1, steps[0].rows) for step in steps]
    cells = list(zip(_funnel(steps), widths, strict=True))
    kept = _gallery(run, KEPT, rows.by_reason(counts), CARDS)
    return _rendered("notebook_run.html", run=run, stages=[], steps=cells, columns=_COLUMNS, kept=kept)


_COLUMNS = ("pairs", "of the stage", "of the pool", "images", "bytes")


def _funnel(steps: Sequence[funnel.Step]) -> Iterator[tuple[str, ...]]:
    """The cells of each step, in the order of `_COLUMNS`, its name first."""
    for before, step in zip([None, *steps], steps, strict=False):
        yield (
            step.name,
            page_text.number(step.rows),
            page_text.share(step.rows, before.rows) if before else "",
            page_text.share(step.rows, steps[0].rows),
            "–" if step.images is None else page_text.number(step.images),
            "–" if step.bytes is None else page_text.size(step.bytes),
        )


def _stages(run: RunFolder) -> list[str]:
    """The stages of an unfinished run that have begun."""
    stages = run.facts["stages"].items()
    return [f"{terminal.shown(name)}: {'finished' if facts.get('finished') else 'begun'}" for name, facts in stages]


def _gallery(run: RunFolder, name: str, counts: Mapping[tuple[str, str], int], at_most: int | None = None) -> Gallery:
    of_reason = [each for each in galleries.samples(run, counts, {}) or [] if each.reason == name]
    cards = [card for each in of_reason for card in each.cards[:at_most]]
    galleries.fit(Galleries([galleries.Gallery("", name, 0, None, cards)], None), BYTES_AT_MOST)
    about = "" if name == KEPT else reason_words.sentence(run.config, name)
    number = sum(each.rows for each in of_reason)
    if not number and name != KEPT:
        number = sum(dropped for (_, reason), dropped in counts.items() if reason == name)
    return Gallery(name, about, number, cards)


def _rendered(template: str, **values: object) -> str:
    return frame.rendered(FOLDER, template, styles=(), scripts=(), **values).decode()
