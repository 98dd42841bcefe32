"""A training run's metrics at Weights & Biases, beside those in its own folder: the extra `wandb`.

Where they go, and as whom, its own environment says: `WANDB_API_KEY`, `WANDB_ENTITY`, `WANDB_BASE_URL`; with
`WANDB_MODE=offline` they stay in RUN/wandb until `wandb sync`. Settings and metrics are sent, and what wandb measures
of the machine; no source code, nothing of git, nothing of what is printed.
"""

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any
from uuid import uuid4

from altalign import storage
from altalign.errors import AltalignError, UsageError, bring
from altalign.train import training_folder
from altalign.train.settings import TrainConfig


def check_installed(config: TrainConfig) -> None:
    """Refuse a project where the package is missing.

    Raises:
        UsageError: it is.
    """
    if config.loop.wandb_project and find_spec("wandb") is None:
        raise UsageError(
            f"[loop] wandb_project = {config.loop.wandb_project!r} needs wandb, not installed here; {bring('wandb')}, "
            "or leave the setting out"
        )


class WandbRun:
    """One run over there, however often training is stopped and goes on: its id is kept in RUN/wandb.json.

    Steps that are taken again, after a checkpoint, are there already: Weights & Biases leaves them out.
    """

    def __init__(self, config: TrainConfig) -> None:
        library: Any = import_module("wandb")  # seconds, and not there for everybody
        settings = library.Settings(
            console="off", silent=True, disable_git=True, save_code=False, disable_job_creation=True
        )
        try:
            self._run: Any = library.init(
                project=config.loop.wandb_project,
                id=_id_of(config),
                resume="allow",
                name=storage.name(config.run.folder),
                dir=training_folder.local(config),
                config=config.model_dump(mode="json"),
                settings=settings,
            )
        except library.Error as error:
            said = " ".join(str(error).split()).rstrip(".")
            raise AltalignError(
                f"[loop] wandb_project = {config.loop.wandb_project!r}: {said}; or give WANDB_MODE=offline, and send "
                "the metrics later with `wandb sync`"
            ) from None

    def log(self, line: Mapping[str, object]) -> None:
        """The metrics of a step, `step` among them."""
        self._run.log({name: value for name, value in line.items() if name != "step"}, step=line["step"])

    def close(self, *, failed: bool) -> None:
        """Send what is left, and say how it ended."""
        self._run.finish(exit_code=int(failed))


def _id_of(config: TrainConfig) -> str:
    place = training_folder.path(config, "wandb.json")
    if not storage.exists(place):
        storage.write_json(place, {"id": uuid4().hex[:16]})
    return storage.read_json(place)["id"]
