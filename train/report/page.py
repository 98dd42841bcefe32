"""Renders the reports of trainings: HTML files that load nothing and run nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from altalign import __version__
from altalign.pages import frame
from altalign.train.report.curves import Chart
from altalign.train.report.noise import NoiseView
from altalign.train.report.samples import Seen

_HERE = Path(__file__).parent
_STYLES = ("page.css", "training.css")


@dataclass(frozen=True)
class Report:
    """What the page of a training shows."""

    folder: str
    about: str  # what was trained, in a line
    results: dict[str, dict[str, float]]  # of each evaluation set, its metrics by name
    charts: Sequence[Chart]  # of the steps
    recalls: Chart | None  # over the evaluations, where there were any
    negatives: Chart | None  # how hard the negatives of each source are
    examples: Sequence[tuple[str, list[Seen]]]  # sources, and what augmentation makes of a pair of each
    facts: dict[str, str]  # of the run, in words
    settings: str  # config.toml
    noise: NoiseView | None = None  # how noisy the pairs are, where that was measured


def html(template: str, **values: object) -> bytes:
    """A page of a template and what it shows, in UTF-8."""
    style = frame.joined(_STYLES, _HERE / "static")
    page = frame.environment(_HERE / "templates").get_template(template)
    shared = {"style": Markup(style), "policy": frame.policy("", style), "generator": f"altalign {__version__}"}
    return page.render(**values, **shared).encode("utf-8", "backslashreplace")
