"""Curves as SVG, drawn by hand: a figure is a string that a page can hold."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from math import floor, log10

WIDTH, HEIGHT = 760, 380
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 20, 30, 40
_LEAST = 1e-12  # a rate below is not drawn on a logarithmic axis


@dataclass(frozen=True)
class Curve:
    """Points in the order of x, as a line, a dashed line, or dots."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    colour: str
    is_dashed: bool = False
    is_dotted: bool = False


def figure(curves: Sequence[Curve], *, at: float, level: float, is_log: bool) -> str:
    """An SVG of curves over the same x, with a vertical line `at` an x and a horizontal one at a `level` of y.

    Args:
        curves: at least one point among them. On a logarithmic axis what is 0 is left out.
        at: where the vertical line stands.
        level: where the horizontal one does.
        is_log: whether y is logarithmic, to whole powers of ten; it is from 0 to 1 else.
    """
    axes = _Axes.around(curves, level, is_log=is_log)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="11">\n'
    body = [*axes.grid(), *(axes.drawn(curve) for curve in curves), *axes.marks(at, level)]
    has_names = len(curves) <= 6
    names = [
        f'<text x="{_LEFT + 8 + 120 * i}" y="{_TOP - 12}" fill="{curve.colour}">{escape(curve.name)}{" - - -" if curve.is_dashed else ""}</text>'
        for i, curve in enumerate(curves)
        if has_names
    ]
    return head + "\n".join([*body, *names]) + "\n</svg>\n"


@dataclass(frozen=True)
class _Axes:
    """From data to the figure's units. On a logarithmic axis `bottom` and `top` are powers of ten."""

    first: float
    last: float
    bottom: float
    top: float
    is_log: bool

    @classmethod
    def around(cls, curves: Sequence[Curve], level: float, *, is_log: bool) -> "_Axes":
        x = [value for curve in curves for value in curve.x]
        if not is_log:
            return cls(min(x), 1.0, 0.0, 1.0, is_log)
        y = [value for curve in curves for value in curve.y if value > _LEAST] + [level]
        return cls(min(x), 1.0, floor(log10(min(y))), floor(log10(max(y))) + 1, is_log)

    def place(self, x: float, y: float) -> tuple[float, float]:
        value = log10(max(y, _LEAST)) if self.is_log else y
        across = (x - self.first) / (self.last - self.first or 1.0)
        up = (value - self.bottom) / (self.top - self.bottom)
        return _LEFT + across * (WIDTH - _LEFT - _RIGHT), HEIGHT - _BOTTOM - up * (HEIGHT - _TOP - _BOTTOM)

    def grid(self) -> Iterator[str]:
        steps = range(int(self.bottom), int(self.top) + 1) if self.is_log else [i / 5 for i in range(6)]
        for step in steps:
            left, y = self.place(self.first, 10.0**step if self.is_log else step)
            text = f"1e{step}" if self.is_log else f"{step:.0%}"
            yield f'<line x1="{left:.1f}" y1="{y:.1f}" x2="{WIDTH - _RIGHT}" y2="{y:.1f}" stroke="#ddd"/>'
            yield f'<text x="{left - 6:.1f}" y="{y + 4:.1f}" text-anchor="end">{text}</text>'
        for i in range(11):
            value = self.first + (self.last - self.first) * i / 10
            x, _ = self.place(value, 1.0)
            yield f'<text x="{x:.1f}" y="{HEIGHT - _BOTTOM + 16}" text-anchor="middle">{value:.3g}</text>'
        yield f'<text x="{WIDTH / 2}" y="{HEIGHT - 6}" text-anchor="middle">cosine above</text>'

    def drawn(self, curve: Curve) -> str:
        points = [self.place(x, y) for x, y in zip(curve.x, curve.y, strict=True) if not self.is_log or y > _LEAST]
        title = f"<title>{escape(curve.name)}</title>"
        if curve.is_dotted:
            dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2"/>' for x, y in points)
            return f'<g fill="{curve.colour}">{title}{dots}</g>'
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        dash = ' stroke-dasharray="6 4"' if curve.is_dashed else ""
        return (
            f'<polyline points="{path}" fill="none" stroke="{curve.colour}" stroke-width="1.5"{dash}>{title}</polyline>'
        )

    def marks(self, at: float, level: float) -> Iterator[str]:
        (x, y), right = self.place(at, level), WIDTH - _RIGHT
        yield f'<line x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{HEIGHT - _BOTTOM}" stroke="#080" stroke-width="1.5"><title>threshold {at:g}</title></line>'
        yield f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="#080" stroke-dasharray="2 3"><title>{level:.3g}</title></line>'
