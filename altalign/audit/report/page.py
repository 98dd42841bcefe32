"""Renders the numbers of a report as one HTML file that needs no other file and may load none."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from altalign.audit.report.galleries import Galleries, Picture
from altalign.pages import frame

if TYPE_CHECKING:  # it brings kernels, which templates need not wait for
    from altalign.audit.report.numbers import Numbers

TEXT_AT_MOST = 5_000_000  # bytes of the page without pictures
_CARDS_AT_MOST = (24, 12, 6, 3, 1, 0)  # of each gallery, tried until the page fits; kept pairs have twice as many
FOLDER = Path(__file__).parent  # of the templates
_CHARTS = "uPlot-1.6.32"
_SCRIPTS = (f"{_CHARTS}.iife.min.js", "charts.js", "find.js", "cards.js", "page.js")
_STYLES = (f"{_CHARTS}.min.css", "page.css")


def html(numbers: "Numbers") -> bytes:
    """The whole page in UTF-8, with fewer cards if it would be too large."""
    page = b""
    for cards in _CARDS_AT_MOST:
        galleries = numbers.galleries if cards == _CARDS_AT_MOST[0] else _fewer(numbers.galleries, cards)
        shown, data = replace(numbers, galleries=galleries), frame.inline(_data(numbers))
        page = frame.rendered(FOLDER, "report.html", styles=_STYLES, scripts=_SCRIPTS, numbers=shown, data=data)
        of_scores = numbers.scores.pictures if numbers.scores else []
        if len(page) - sum(len(each.uri) for each in (*_shown(galleries), *of_scores)) <= TEXT_AT_MOST:
            break
    return page


def _data(numbers: "Numbers") -> dict[str, object]:
    """The data that the scripts draw."""
    of_scores = [*numbers.scores.distributions, *numbers.scores.thresholds] if numbers.scores else []
    charts = {
        each.key: {
            "labels": [part.label for part in each.bins],
            "kept": [part.kept for part in each.bins],
            "dropped": [part.dropped for part in each.bins],
            "names": [each.names.kept, each.names.dropped],
            "thresholds": [[threshold.label, threshold.at] for threshold in each.thresholds],
            "log": each.is_log,
            "curve": each.is_curve,
        }
        for each in (*numbers.distributions, *numbers.thresholds, *of_scores)
        if each.bins
    }
    return {"charts": charts}


def _fewer(found: Galleries, cards: int) -> Galleries:
    samples = [
        replace(each, cards=each.cards[: 2 * cards if each.stage == "kept" else cards]) for each in found.samples or []
    ]
    return Galleries(samples, found.near)


def _shown(found: Galleries) -> Iterator[Picture]:
    cards = (card.picture for gallery in found.samples or [] for card in gallery.cards)
    sides = (side for of_kind in (found.near or {}).values() for near in of_kind for side in (near.image, near.test))
    strip = (shot.card.picture for shots in found.strip for shot in shots)
    yield from (picture for picture in (*cards, *sides, *strip) if picture and picture.is_shown)
