"""What takes a training long the first time in a process, done before that forks."""

import importlib

from altalign.train.settings.training import TrainConfig
from altalign.train.step import flops

_LATE = (
    "altalign.cli",
    "altalign.train.nlip.phases",
    "altalign.train.report.page",
    "torch._dynamo",
    "torch.distributed.fsdp",
    "torch.distributed.run",
    "torch.utils.tensorboard",
)
_SMALL = {
    "data": {"runs": ["any"], "crop_px": 32},
    "image_tower": {"architecture": "b0", "width": 0.25, "depth": 0.25, "embedding_width": 16},
    "text_tower": {"layers": 1, "width": 16, "heads": 2},
}


def warm() -> None:
    """Import what trainings import late, and count operations as they do.

    Forward alone: torch trains in no fork of a process that has gone backward.
    """
    for name in _LATE:
        importlib.import_module(name)
    config = TrainConfig.model_validate(_SMALL)
    with flops.without_memory(config, vocabulary=50) as model, flops.counter():
        flops.encoded(config, model, 2)
