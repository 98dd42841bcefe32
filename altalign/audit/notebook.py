"""How a run shows itself: its funnel as text, and with thumbnails as HTML of a notebook."""

import io
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
from rich.table import Column, Table

from altalign import terminal
from altalign.audit import rows
from altalign.audit.report import FOLDER, funnel, galleries
from altalign.audit.report.galleries import Card
from altalign.audit.run_folder import RunFolder
from altalign.data.reasons import KEPT
from altalign.pages import frame, page_text
from altalign.rules import reason_words

CARDS = 12  # of the kept samples, below the funnel
BYTES_AT_MOST = 3_000_000  # of pictures in one output: notebooks are files, too
_COLUMNS = ("pairs", "of the stage", "of the pool", "images", "bytes")


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


def _gallery(run: RunFolder, name: str, counts: Mapping[tuple[str, str], int], at_most: int | None = None) -> Gallery:
    every = galleries.samples(run, counts, {}, galleries.within(BYTES_AT_MOST), reason=name) or []
    cards = [card for each in every for card in each.cards[:at_most]]
    number = sum(each.rows for each in every)
    if not number and name != KEPT:
        number = sum(dropped for (_, reason), dropped in counts.items() if reason == name)
    return Gallery(name, "" if name == KEPT else reason_words.sentence(run.config, name), number, cards)


def text(run: RunFolder) -> str:
    """The funnel in lines of 80 characters or fewer, below the run's folder."""
    if not run.is_finished:
        return "\n".join([f"{terminal.shown(run.folder)}: not finished", *_stages(run)])
    out = io.StringIO()
    console = terminal.into(out)
    console.width = 80
    table = Table("after", *(Column(name, justify="right") for name in _COLUMNS), box=None, pad_edge=False)
    for cells, _ in _funnel(run, rows.counts(run)):
        table.add_row(*(cell.replace("\u2009", " ") for cell in cells))  # thin spaces are for pages
    console.print(table)
    lines = [f"{terminal.shown(run.folder)}: finished", *out.getvalue().splitlines()]
    return "\n".join(line.rstrip() for line in lines)


def html(run: RunFolder) -> str:
    """The funnel as a table, and thumbnails of some kept samples."""
    if not run.is_finished:
        return _rendered("notebook_run.html", run=run, stages=_stages(run), steps=[], columns=_COLUMNS, kept=None)
    counts = rows.counts(run)
    kept, steps = _gallery(run, KEPT, rows.by_reason(counts), CARDS), _funnel(run, counts)
    return _rendered("notebook_run.html", run=run, stages=[], steps=steps, columns=_COLUMNS, kept=kept)


def pairs(table: pa.Table, *, nsfw_from: float) -> str:
    """The pairs that a search has found, with their pictures, as HTML."""
    picture, cards = galleries.within(BYTES_AT_MOST), list[dict[str, object]]()
    for row in table.to_pylist():
        (name, value), *_ = row.items()
        cards.append(
            {
                "caption": row["caption"] or "",
                "measured": [(name.replace("_", " "), f"{value:.3f}"), ("", row["reason"]), ("key", row["key"] or "")],
                "picture": picture(row["picture"]),
                "is_nsfw": row["nsfw_score"] is not None and row["nsfw_score"] >= nsfw_from,
            }
        )
    return _rendered("notebook_search.html", found={"cards": cards})


def _funnel(run: RunFolder, counts: funnel.Rows) -> list[tuple[list[str], float]]:
    """Of each step its name and the cells of `_COLUMNS`, and its share of the pool in percent."""
    lines, before = list[tuple[list[str], float]](), 0
    for step in (steps := funnel.steps(run, counts)):
        shares = [page_text.share(step.rows, whole) for whole in (before, steps[0].rows)]
        images = "–" if step.images is None else page_text.number(step.images)
        size = "–" if step.bytes is None else page_text.size(step.bytes)
        cells = [step.name, page_text.number(step.rows), *shares, images, size]
        lines.append((cells, 100 * step.rows / max(1, steps[0].rows)))
        before = step.rows
    return lines


def _stages(run: RunFolder) -> list[str]:
    """The stages of an unfinished run that have begun."""
    stages = run.facts["stages"].items()
    return [f"{terminal.shown(name)}: {'finished' if facts.get('finished') else 'begun'}" for name, facts in stages]


def _rendered(template: str, **values: object) -> str:
    return frame.rendered(FOLDER, template, styles=(), scripts=(), **values).decode()
