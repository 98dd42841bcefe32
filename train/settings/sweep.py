"""Settings of `altalign train --sweep`: those of a training on classes, and what is drawn anew for each trial of it."""

from typing import Annotated, Self

import numpy as np
from pydantic import Field, model_validator

from altalign.settings.common import Settings
from altalign.train.settings.training import TrainConfig
from altalign.train.settings.types import Above0, Path, Positive

Value = bool | int | float | str
Drawn = dict[str, dict[str, Value]]  # {section: {setting: value}}

_OWN = (("run", ""), ("classification", "train"), ("classification", "test"), ("classification", "classes"))


class Draw(Settings):
    """Where a setting's value is drawn from: `of` some values, or `log`, between two numbers evenly by logarithm."""

    of: list[Value] = Field(default_factory=list)
    log: list[Above0] = Field(default_factory=list)

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if bool(self.of) == bool(self.log):
            raise ValueError("give of = [values] or log = [low, high], one of both")
        if self.log and not (len(self.log) == 2 and self.log[0] < self.log[1]):
            raise ValueError(f"log = {self.log} is no low and high; give two numbers, the lower first")
        return self

    def drawn(self, random: np.random.Generator) -> Value:
        """A value; those of `log` with three digits."""
        place = random.random()
        if self.of:
            return self.of[int(place * len(self.of))]
        low, high = np.log(self.log)
        return float(f"{np.exp(low + place * (high - low)):.3g}")


class SweepSettings(Settings):
    """VTAB by fine-tuning: trials on 800 examples a task, chosen by 200 others (section 5.3)."""

    path: Path
    """A folder with one of each task: `caltech101/train800.txt`, `val200.txt`, `test.txt`, lines of FILE CLASS."""
    tasks: list[Path] = Field(default_factory=list)
    """Only these tasks. Empty: all in `path`. Commands with other tasks may share the run's folder."""
    trials: Positive = 50
    """Trials of each task, the same for all."""
    draws: Annotated[dict[str, dict[str, Draw]], Field(min_length=1)]
    """What is drawn: `SECTION.SETTING = { log = [low, high] }` or `{ of = [values] }`."""

    def drawn(self, trial: int, *, seed: int) -> Drawn:
        """What a trial changes of the settings, the same among few trials and among many.

        The order of `draws` is no part of it.
        """
        random = np.random.default_rng([seed, trial])
        return {
            section: {name: draw.drawn(random) for name, draw in sorted(draws.items())}
            for section, draws in sorted(self.draws.items())
        }

    @model_validator(mode="after")
    def _draws_what_is_free(self) -> Self:
        for section, name in _OWN:
            if section in self.draws and (not name or name in self.draws[section]):
                raise ValueError(f"draws.{section}{'.' if name else ''}{name}: the sweep sets it itself; leave it out")
        return self


class SweepConfig(TrainConfig):
    """A sweep: the settings that all its trainings have, and what is drawn for each."""

    sweep: SweepSettings
