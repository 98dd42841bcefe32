"""An experiment as its TOML file says it: arms, what each replaces, and the runs that they come to. Pure."""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from altalign.settings.common import Settings, merged
from altalign.train import NUMBERS_VERSION

Direction = Literal["higher", "lower", "same"]
Tree = Mapping[str, Any]
_GROWING = {
    ("schedule", "steps"), ("schedule", "warmup_steps"), ("data", "pairs"),
    ("image_tower", "width"), ("text_tower", "width"), ("text_tower", "heads"),
}  # fmt: skip


class Arm(Settings):
    """Runs of the same settings, one a seed."""

    about: str  # in the words of a table
    settings: dict[str, Any] = Field(default_factory=dict)  # what differs from the base, or from the arm it extends
    extends: str = ""
    train: list[str] = Field(default_factory=list)  # sets, if others than the experiment's; `{seed}` is the run's seed
    tests: list[str] = Field(default_factory=list)
    needs: list[str] = Field(default_factory=list)  # sets that its settings name beside those
    replaces: str = ""  # the arm that it is compared with, seed by seed
    paper: dict[str, Direction] = Field(default_factory=dict)  # what the paper finds beside that one, by measure
    variant: str = ""  # a change that no setting makes, of `VARIANTS` in the experiment's module
    ranks: Annotated[int, Field(ge=1)] = 1  # processes of a run
    seeds: list[int] = Field(default_factory=list)  # if others than the experiment's: more, where a verdict turned
    may_learn_nothing: bool = False  # that it does is what the paper says of it, and no want of steps
    untried: str = ""  # why nothing is trained for it: its row has the reason


class Section(Settings):
    """Arms that answer one question: a table, with a row an arm."""

    title: str
    about: str
    arms: list[str]
    measures: list[str] = Field(default_factory=lambda: ["rsum"])
    is_one_table: bool = False  # of means, with a column a measure, instead of a table each


class Experiment(Settings):
    """A page of results."""

    title: str
    about: str
    seeds: Annotated[list[int], Field(min_length=2)]  # of every arm that names no others
    measures: dict[str, str]  # the words for each
    trained_above: dict[str, float] = Field(default_factory=dict)  # a run with less in a measure has learned nothing
    margins: dict[str, float] = Field(default_factory=dict)  # a difference below which arms are the same, by measure
    train: list[str]  # of `SETS` in the experiment's module
    tests: list[str]
    needs: list[str] = Field(default_factory=list)  # sets that the settings of the base name beside those
    base: dict[str, Any]  # settings of training, for all arms
    arms: dict[str, Arm]
    sections: list[Section]

    @model_validator(mode="after")
    def _names_are_known(self) -> Self:
        named = {name for arm in self.arms.values() for name in (arm.replaces, arm.extends) if name}
        named |= {name for section in self.sections for name in section.arms}
        if unknown := named - self.arms.keys():
            raise ValueError(f"arms: {', '.join(sorted(unknown))}: no such arm; there are {', '.join(self.arms)}")
        claimed = {name for arm in self.arms.values() for name, way in arm.paper.items() if way == "same"}
        if unbounded := claimed - self.margins.keys():
            raise ValueError(f"margins: none for {', '.join(sorted(unbounded))}, of which an arm claims to be the same")
        if unworded := {name for section in self.sections for name in section.measures} - self.measures.keys():
            raise ValueError(f"measures: no words for {', '.join(sorted(unworded))}; add them")
        return self

    @property
    def pilots(self) -> set[str]:
        """Arms that others replace: what their seeds can tell apart follows from the spread of these."""
        return {arm.replaces for arm in self.arms.values()}

    def seeds_of(self, *arms: str) -> list[int]:
        """Those that all of these arms have."""
        of_each = [self.arms[arm].seeds or self.seeds for arm in arms]
        return [seed for seed in of_each[0] if all(seed in seeds for seeds in of_each)]


@dataclass(frozen=True)
class Job:
    """One run: an arm with a seed."""

    arm: str
    seed: int
    settings: Tree  # of training
    variant: str
    ranks: int
    sets: frozenset[str]

    @property
    def name(self) -> str:
        """Of its files."""
        return f"{self.arm}-{self.seed}"

    @property
    def digest(self) -> str:
        """Of all that its result depends on: what the file says, and the version of the code that trains."""
        said = [NUMBERS_VERSION, self.seed, self.settings, self.variant, self.ranks]
        return sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]


def jobs(experiment: Experiment, *, absent: Collection[str] = ()) -> Iterator[Job]:
    """All runs but those that read an absent set: those of pilots, then the others, seed by seed.

    So a queue that is stopped has whole seeds, which can be compared.
    """
    all_of = ((name, seed) for name in experiment.arms for seed in experiment.seeds_of(name))
    for name, seed in sorted(all_of, key=lambda one: (one[0] not in experiment.pilots, one[1])):
        arm = experiment.arms[name]
        train = [each.format(seed=seed) for each in arm.train or experiment.train]
        tests = arm.tests or experiment.tests
        sets = frozenset([*train, *tests, *arm.needs, *experiment.needs])
        if not (arm.untried or sets & set(absent)):
            yield Job(name, seed, _settings(experiment, arm, train, tests), arm.variant, arm.ranks, sets)


def scaled(experiment: Experiment, times: int) -> Experiment:
    """The same with so many times the steps, the width of towers and the pairs that are asked for."""
    of_arms = {name: {"settings": _grown(arm.settings, times)} for name, arm in experiment.arms.items()}
    arms = {name: arm.model_copy(update=of_arms[name]) for name, arm in experiment.arms.items()}
    return experiment.model_copy(update={"base": _grown(experiment.base, times), "arms": arms})


def _grown(settings: Any, times: int, section: str = "") -> Any:
    """Settings, whole or of a section, larger by a factor."""
    if isinstance(settings, Mapping):
        return {
            name: value * times if (section, name) in _GROWING else _grown(value, times, name)
            for name, value in settings.items()
        }
    return [_grown(one, times, section) for one in settings] if isinstance(settings, list) else settings


def _settings(experiment: Experiment, arm: Arm, train: Sequence[str], tests: Sequence[str]) -> Tree:
    """Settings of training; sets are folders of `data`."""
    retrieval = [{"name": name, "path": f"data/{name}"} for name in tests]
    sets = {"data": {"runs": [f"data/{name}" for name in train]}, "evaluation": {"retrieval": retrieval}}
    return merged(_extended(experiment, arm), sets)


def _extended(experiment: Experiment, arm: Arm) -> Tree:
    """The settings of an arm over those of the arm that it extends, or of the base."""
    below = _extended(experiment, experiment.arms[arm.extends]) if arm.extends else experiment.base
    return merged(below, arm.settings)


def left(planned: Sequence[Job], finished: Mapping[str, str]) -> list[Job]:
    """Those that are not finished: `finished` has the digest of each finished run by its name."""
    return [job for job in planned if finished.get(job.name) != job.digest]
