"""The figure of an experiment, as SVG: differences with their intervals, one line each. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from experiments.intervals import Difference

_ROW, _HEAD, _LABELS, _PLOT, _RIGHT = 22, 34, 390, 330, 24
_COLOURS = {"as": "#1a7f37", "against": "#b3261e", "": "#57606a"}


@dataclass(frozen=True)
class Line:
    """A heading, where there is no difference; else a label, a difference and a colour's name."""

    label: str
    difference: Difference | None = None
    colour: str = ""


def svg(lines: Sequence[Line], *, unit: str) -> str:
    """Differences around 0, to one scale: an interval is a bar, its mean a dot; of one pair there is the dot alone."""
    reach = _reach(lines)
    middle, height = _LABELS + _PLOT / 2, _HEAD + _ROW * len(lines) + 12

    def x(value: float) -> float:
        return middle + value / reach * _PLOT / 2

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_LABELS + _PLOT + _RIGHT} {height}" '
        'font-family="system-ui, sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        f'<line x1="{middle}" y1="{_HEAD - 8}" x2="{middle}" y2="{height - 8}" stroke="#8c959f"/>',
    ]
    for value in (-reach, 0, reach):
        word = f"{value:+.3g}" if value else "0"
        parts.append(f'<text x="{x(value):.1f}" y="{_HEAD - 14}" text-anchor="middle">{word}</text>')
    parts.append(f'<text x="8" y="{_HEAD - 14}" fill="#57606a">{escape(unit)}</text>')
    for number, line in enumerate(lines):
        y = _HEAD + _ROW * number + 10
        if line.difference is None:
            parts.append(f'<text x="8" y="{y + 4}" font-weight="600">{escape(line.label)}</text>')
            continue
        parts.append(f'<text x="20" y="{y + 4}">{escape(line.label)}</text>')
        colour, one = _COLOURS[line.colour], line.difference
        if one.pairs > 1:
            ends = f'x1="{x(one.low):.1f}" x2="{x(one.high):.1f}"'
            parts.append(f'<line {ends} y1="{y}" y2="{y}" stroke="{colour}" stroke-width="3"/>')
        parts.append(f'<circle cx="{x(one.mean):.1f}" cy="{y}" r="4.5" fill="{colour}"/>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _reach(lines: Sequence[Line]) -> float:
    """What the scale ends at: 1, 2 or 5 times a power of ten, above all means and finite ends of intervals."""
    ends = [abs(end) for line in lines if (one := line.difference) for end in (one.mean, one.low, one.high)]
    most = max((end for end in ends if math.isfinite(end)), default=1.0) or 1.0
    power = 10 ** math.floor(math.log10(most))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= most)
