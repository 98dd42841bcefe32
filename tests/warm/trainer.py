"""What takes a training long the first time in a process, done before that forks."""

import importlib

_LATE = (
    "altalign.cli",
    "altalign.train.nlip.phases",
    "altalign.train.report.page",
    "sklearn.mixture",
    "torch._dynamo",
    "torch.distributed.fsdp",
    "torch.distributed.run",
    "torch.utils.tensorboard",
)


def warm() -> None:
    """Import what trainings import late."""
    for name in _LATE:
        importlib.import_module(name)
