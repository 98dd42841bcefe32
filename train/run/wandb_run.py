"""A training run's metrics at Weights & Biases, beside those in its own folder: the extra `wandb`.

Its own environment says where they go: `WANDB_API_KEY`, `WANDB_ENTITY`, `WANDB_BASE_URL`; with `WANDB_MODE=offline`
they stay in RUN/wandb until `wandb sync`. No source code is sent, nothing of git, and nothing of what is printed.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import Any
from uuid import uuid4

from altalign import storage
from altalign.errors import AltalignError, UsageError, bring
from altalign.train.run import training_folder
from altalign.train.settings.training import TrainConfig


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


def opened(config: TrainConfig) -> Any:
    """The package's own run, with the id that RUN/wandb.json keeps however often training is stopped and goes on."""
    library: Any = import_module("wandb")  # takes seconds
    place = training_folder.path(config, "wandb.json")
    if not storage.exists(place):
        storage.write_json(place, {"id": uuid4().hex[:16]})
    try:
        return library.init(
            project=config.loop.wandb_project,
            id=storage.read_json(place)["id"],
            resume="allow",
            name=storage.name(config.run.folder),
            dir=training_folder.local(config),
            config=config.model_dump(mode="json"),
            settings={"console": "off", "silent": True, "disable_git": True, "disable_job_creation": True},
        )
    except library.Error as error:
        message = " ".join(str(error).split()).rstrip(".")
        raise AltalignError(
            f"[loop] wandb_project = {config.loop.wandb_project!r}: {message}; or give WANDB_MODE=offline, and send "
            "the metrics later with `wandb sync`"
        ) from None
