"""An experiment as its TOML file says it: arms, what each replaces, and the runs that they come to. Pure."""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from altalign.settings import Settings, merged

Direction = Literal["higher", "lower", "same"]
Tree = Mapping[str, Any]


class Arm(Settings):
    """Runs of the same settings, one a seed."""

    about: str
    """What it is, in the words of a table."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """What differs from the base, section by section."""
    extends: str = ""
    """The arm whose settings stand below its own. Empty: those of the base alone."""
    train: list[str] = Field(default_factory=list)
    """The sets that it trains on, if others than the experiment's; `{seed}` in a name stands for the run's seed."""
    tests: list[str] = Field(default_factory=list)
    """The sets that recall is measured on, if others than the experiment's."""
    needs: list[str] = Field(default_factory=list)
    """Sets that its settings name beside those."""
    replaces: str = ""
    """The arm that it is compared with, seed by seed. Empty: none."""
    paper: dict[str, Direction] = Field(default_factory=dict)
    """What the paper finds of this arm beside the other, by measure."""
    variant: str = ""
    """A change that no setting makes, of `VARIANTS` in the experiment's module."""
    ranks: Annotated[int, Field(ge=1)] = 1
    """Processes of a run."""


class Section(Settings):
    """Arms that answer one question."""

    title: str
    """Its heading."""
    about: str
    """What the paper does and finds, and what is done here."""
    arms: list[str]
    """Rows of its table, in this order."""
    measures: list[str] = Field(default_factory=lambda: ["rsum"])
    """What is compared, by the names in results."""


class Experiment(Settings):
    """A page of results."""

    title: str
    """Its heading."""
    about: str
    """Where the claims are from, and what holds for all arms."""
    seeds: Annotated[list[int], Field(min_length=2)]
    """Of every arm."""
    measures: dict[str, str]
    """The words for each measure."""
    train: list[str]
    """Sets to train on, of `SETS` in the experiment's module."""
    tests: list[str]
    """Sets to measure recall on."""
    base: dict[str, Any]
    """Settings of training, for all arms."""
    arms: dict[str, Arm]
    """By their names."""
    sections: list[Section]
    """In the order of the page."""

    @model_validator(mode="after")
    def _names_are_known(self) -> Self:
        named = {
            **{f"arms.{name}.replaces": [arm.replaces] for name, arm in self.arms.items() if arm.replaces},
            **{f"arms.{name}.extends": [arm.extends] for name, arm in self.arms.items() if arm.extends},
            **{f"sections {section.title!r}": section.arms for section in self.sections},
        }
        for where, names in named.items():
            if unknown := [name for name in names if name not in self.arms]:
                raise ValueError(f"{where}: {', '.join(unknown)}: no such arm; there are {', '.join(self.arms)}")
        order = list(self.arms)
        for name, arm in self.arms.items():
            if arm.extends and order.index(arm.extends) >= order.index(name):
                raise ValueError(f"arms.{name}.extends: {arm.extends}: it stands below; give an arm above")
        unworded = {name for section in self.sections for name in section.measures} - self.measures.keys()
        if unworded:
            raise ValueError(f"measures: no words for {', '.join(sorted(unworded))}; add them")
        return self


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
        """Of all that its result depends on, as far as the file says it."""
        said = [self.seed, self.settings, self.variant, self.ranks]
        return sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]


def jobs(experiment: Experiment, *, absent: Collection[str] = ()) -> Iterator[Job]:
    """All runs but those that read an absent set: every arm with the first seed, then with the next, and so on.

    So a queue that is stopped has whole seeds, which can be compared.
    """
    for seed in experiment.seeds:
        for name, arm in experiment.arms.items():
            train = [each.format(seed=seed) for each in arm.train or experiment.train]
            tests = arm.tests or experiment.tests
            sets = frozenset([*train, *tests, *arm.needs])
            if not sets & set(absent):
                yield Job(name, seed, _settings(experiment, arm, train, tests), arm.variant, arm.ranks, sets)


def _settings(experiment: Experiment, arm: Arm, train: Sequence[str], tests: Sequence[str]) -> Tree:
    """Settings of training; sets are folders of `data`."""
    retrieval = [{"name": name, "kind": "run", "paths": [f"data/{name}"]} for name in tests]
    sets = {"data": {"runs": [f"data/{name}" for name in train]}, "evaluation": {"retrieval": retrieval}}
    return merged(_extended(experiment, arm), sets)


def _extended(experiment: Experiment, arm: Arm) -> Tree:
    """The settings of an arm over those of the arm that it extends, or of the base."""
    below = _extended(experiment, experiment.arms[arm.extends]) if arm.extends else experiment.base
    return merged(below, arm.settings)


def left(planned: Sequence[Job], finished: Mapping[str, str]) -> list[Job]:
    """Those that are not finished: `finished` has the digest of each finished run by its name."""
    return [job for job in planned if finished.get(job.name) != job.digest]
