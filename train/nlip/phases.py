"""A training in phases (NLIP, figure 3): each is a run of its own in RUN/phases, made of the settings of the whole.

A phase that is finished is passed over, and one that was stopped goes on: so the whole goes on where it was. Each has
its own seed, or the second would see the order and the augmentation of the first again.
"""

from collections.abc import Mapping
from typing import Any

from altalign import storage, terminal
from altalign.errors import UsageError
from altalign.settings.common import merged
from altalign.train import loop
from altalign.train.exchange import encoders
from altalign.train.nlip import captions, noise
from altalign.train.run import training_folder
from altalign.train.run.ranks import joined
from altalign.train.settings.training import OF_RUN, TrainConfig

_OF_PHASE = "phase:"
_SEEDS = 2**32  # between those of phases


def train(config: TrainConfig, *, until: str = "") -> int:
    """Go through the phases, to the last or to the one that is named; gives the exit code.

    Raises UsageError: there is no such phase, or the settings of one are wrong; before any work.
    """
    names = [phase.name for phase in config.phases]
    if until and until not in names:
        raise UsageError(f"--until {until}: no such phase; there are {', '.join(names) or 'none'}")
    if config.phases[0].does != "train":
        raise UsageError(f"[[phases]] {names[0]}: the first phase has nothing before it; give one that trains")
    of_phases = {phase.name: of_phase(config, phase.name) for phase in config.phases if phase.does == "train"}
    with joined(config.loop.device) as ranks, loop.held(config, ranks):
        before = next(iter(of_phases.values()))
        for phase in config.phases:
            if ranks.is_first:
                terminal.stderr().print(f"phase {phase.name}", soft_wrap=True)
            if phase.does == "train":
                before = of_phases[phase.name]
                if not ranks.of_first(ranks.is_first and _is_finished(before)):
                    loop.train(before)
            else:
                run = before.run.folder
                trained = ranks.first_then_others(lambda run=run: encoders.trained(run))  # of a store, once a machine
                if phase.does == "noise":
                    noise.of_trained(trained, ranks)
                else:
                    captions.write(trained, config, ranks)
            if phase.name == until:
                break
    return 0


def of_phase(config: TrainConfig, name: str) -> TrainConfig:
    """The settings of a phase that trains.

    Raises UsageError: they are wrong, or name a phase that is not before it.
    """
    number = [phase.name for phase in config.phases].index(name)
    seed = config.run.seed + _SEEDS * number
    own = {"run": {"folder": training_folder.path(config, "phases", name), "seed": seed}}
    values = merged(merged(config.model_dump(mode="json", exclude={"phases"}), own), config.phases[number].settings)
    known = {phase.name for phase in config.phases[:number] if phase.does == "train"}
    return TrainConfig.from_values(_named(values, config, known, name), where=f"[[phases]] {name}")


def _named(values: Any, config: TrainConfig, known: set[str], name: str) -> Any:
    """The same values, with folders in the place of phases."""
    if isinstance(values, Mapping):
        return {key: _named(value, config, known, name) for key, value in values.items()}
    if isinstance(values, list):
        return [_named(value, config, known, name) for value in values]
    if not isinstance(values, str) or not values.startswith(_OF_PHASE):
        return values
    phase = values.removeprefix(_OF_PHASE)
    if phase not in known:
        earlier = ", ".join(sorted(known)) or "none"
        raise UsageError(f"[[phases]] {name}: {values}: no phase before it that trains; there are {earlier}")
    return OF_RUN + training_folder.path(config, "phases", phase)


def _is_finished(config: TrainConfig) -> bool:
    training_folder.check_folder(config)
    is_trained = bool(training_folder.recorded(config).get("finished"))
    return is_trained and storage.exists(training_folder.path(config, "report.html"))
