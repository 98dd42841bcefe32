"""The learning rate over the steps: a line from 0 to the peak, then a fall to the floor (ALIGN section 5)."""

import math
from typing import assert_never

from altalign.train.settings.training import ScheduleSettings

STEP_FACTOR = 0.2  # of `decay = "step"` (ALIGN, 5.3)


def rate(step: int, settings: ScheduleSettings) -> float:
    """The learning rate of a step, before any part's factor.

    Steps count from 1, so that the first one of a warm-up already learns, and the warm-up's last has the peak. The last
    step of all has the floor; so has any after it. Of step 0, the state before training, the rate is where the line
    begins.
    """
    if step < settings.warmup_steps:
        return settings.peak * step / settings.warmup_steps
    if settings.decay == "constant":
        return settings.peak
    if settings.decay == "step":
        return settings.peak * STEP_FACTOR ** (max(step - 1 - settings.warmup_steps, 0) // settings.every)
    left = _left(step, settings)
    if settings.decay == "linear":
        return settings.floor + (settings.peak - settings.floor) * left
    if settings.decay == "cosine":
        return settings.floor + (settings.peak - settings.floor) * (1 - math.cos(math.pi * left)) / 2
    assert_never(settings.decay)


def _left(step: int, settings: ScheduleSettings) -> float:
    """Share of the steps after the warm-up that are still to come: 1 at its end, 0 at the last step."""
    falling = settings.steps - settings.warmup_steps
    return max(settings.steps - step, 0) / falling if falling else 1.0
