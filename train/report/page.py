"""Renders the report of a training run: one HTML file that loads nothing and runs nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from altalign import __version__
from altalign.pages import frame
from altalign.train.report.curves import Chart
from altalign.train.report.noise import NoiseView
from altalign.train.report.samples import Example
from altalign.train.report.view import View

_HERE = Path(__file__).parent
_STYLES = ("page.css", "training.css")


@dataclass(frozen=True)
class Report:
    """What the page shows.

    Attributes:
        folder: the run.
        about: what was trained, in a line.
        results: of each evaluation set, its metrics by name.
        charts: of the steps.
        recalls: over the evaluations, where there were any.
        negatives: how hard the negatives of each source are.
        view: embeddings in two dimensions.
        examples: what augmentation makes of pairs.
        facts: of the run, in words.
        settings: config.toml.
        noise: how noisy the pairs are, where that was measured.
    """

    folder: str
    about: str
    results: dict[str, dict[str, float]]
    charts: Sequence[Chart]
    recalls: Chart | None
    negatives: Chart | None
    view: View | None
    examples: Sequence[Example]
    facts: dict[str, str]
    settings: str
    noise: NoiseView | None = None


def html(report: Report) -> bytes:
    """The page in UTF-8."""
    style = frame.joined(_STYLES, _HERE / "static")
    template = frame.environment(_HERE / "templates").get_template("training.html")
    page = template.render(
        report=report,
        sources=list(dict.fromkeys(report.view.sources)) if report.view else [],
        style=Markup(style),
        policy=frame.policy("", style),
        generator=f"altalign {__version__}",
        dots=dots,
    )
    return page.encode("utf-8", "backslashreplace")


def dots(view: View, source: str) -> dict[str, list[tuple[float, float]]]:
    """The places of a source's images and captions in a square of 100 by 100, up is less."""
    rows = [number for number, of in enumerate(view.sources) if of == source]
    return {
        name: [_place(places[row]) for row in rows] for name, places in (("image", view.images), ("text", view.texts))
    }


def _place(at: Any) -> tuple[float, float]:
    return round(2 + 96 * float(at[0]), 1), round(98 - 96 * float(at[1]), 1)
