"""The axes of the figures on the page of a calibration."""

from altalign.audit.report.calibration import Axes
from altalign.calibration_page import Curve


def test_a_straight_line_stays_straight_and_up_is_less() -> None:
    line = Curve("a line", "fitted", [(0.5, 0.0), (0.75, 0.5), (1.0, 1.0)])
    axes = Axes.around([line], 0.5, is_log=False)
    first, middle, last = axes.places(line)
    assert [2 * middle[0], 2 * middle[1]] == [first[0] + last[0], first[1] + last[1]]
    assert first[1] > last[1]


def test_a_logarithmic_axis_leaves_out_zeros() -> None:
    rates = Curve("rates", "counted", [(0.5, 1e-2), (0.6, 1e-4), (0.7, 0.0)], is_dotted=True)
    axes = Axes.around([rates], 1e-3, is_log=True)
    assert len(axes.places(rates)) == 2
    assert {"1e-4", "1e-2"} <= {label for _, label in axes.rows()}
