"""The page of a calibration: one HTML file that loads nothing and runs nothing. Pipelines call `write` by its name."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import floor, log10

from markupsafe import Markup

from altalign import storage
from altalign.audit.report import page
from altalign.calibration_page import Curve, Page
from altalign.pages import frame

_STYLES = ("page.css", "calibration.css")
_LEAST = 1e-12  # rates below are not drawn on a logarithmic axis


def write(shown: Page) -> int:
    """Write the page to its path; returns the exit code."""
    style = page.joined(_STYLES)
    made = page.environment().get_template("calibration.html")
    text = made.render(
        page=shown,
        style=Markup(style),
        policy=frame.policy("", style),
        rates=Axes.around(shown.rates, shown.allowed_rate, is_log=True),
        recalls=Axes.around(shown.recalls, shown.covered_from, is_log=False),
        picture=frame.data_uri,
    )
    storage.write_bytes(shown.path, text.encode("utf-8", "backslashreplace"))
    return 0


@dataclass(frozen=True)
class Axes:
    """From thresholds and values to units of an SVG. On a logarithmic axis `bottom` and `top` are powers of ten.

    Attributes:
        first: the least threshold; the last is 1.
        level: the value that a horizontal line marks.
    """

    first: float
    bottom: float
    top: float
    level: float
    is_log: bool
    width: int = 760
    height: int = 380
    left: int = 60
    right: int = 740
    ceiling: int = 30
    floor: int = 340

    @classmethod
    def around(cls, curves: Sequence[Curve], level: float, *, is_log: bool) -> "Axes":
        """Axes for curves with at least one point; values are from 0 to 1, or from one power of ten to another."""
        points = [point for curve in curves for point in curve.points]
        first = min(x for x, _ in points)
        if not is_log:
            return cls(first, 0.0, 1.0, level, is_log)
        values = [y for _, y in points if y > _LEAST] + [level]
        return cls(first, floor(log10(min(values))), floor(log10(max(values))) + 1, level, is_log)

    def x(self, threshold: float) -> float:
        """Where a threshold is."""
        across = (threshold - self.first) / (1.0 - self.first or 1.0)
        return round(self.left + across * (self.right - self.left), 1)

    def y(self, value: float) -> float:
        """Where a value is; up is less."""
        scaled = log10(max(value, _LEAST)) if self.is_log else value
        up = (scaled - self.bottom) / (self.top - self.bottom)
        return round(self.floor - up * (self.floor - self.ceiling), 1)

    def rows(self) -> Iterator[tuple[float, str]]:
        """Lines of the grid, with their labels."""
        if self.is_log:
            return ((self.y(10.0**power), f"1e{power}") for power in range(int(self.bottom), int(self.top) + 1))
        return ((self.y(i / 5), f"{i / 5:.0%}") for i in range(6))

    def columns(self) -> Iterator[tuple[float, str]]:
        """Labels of thresholds."""
        thresholds = (self.first + (1.0 - self.first) * i / 10 for i in range(11))
        return ((self.x(threshold), f"{threshold:.3g}") for threshold in thresholds)

    def places(self, curve: Curve) -> list[tuple[float, float]]:
        """A curve's points; a logarithmic axis leaves out zeros."""
        return [(self.x(x), self.y(y)) for x, y in curve.points if not self.is_log or y > _LEAST]
