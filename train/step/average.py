"""A moving average of a model's weights (Polyak and Juditsky, 1992), which may be evaluated in their place."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from altalign.train.run import sharded_tensors

_many: Any = torch  # as in optimizers


class Average:
    """The average of all weights and running statistics, on their device; of a sharded model each rank has its parts.

    After each step it is decay * average + (1 - decay) * weights; before the first it is the weights. Counts of batches
    are those of the model.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._model, self._decay = model, decay
        self.begin()

    def begin(self) -> None:
        """Begin anew with the model's weights."""
        self.values = {name: value.detach().clone() for name, value in self._model.state_dict().items()}

    @torch.no_grad()
    def update(self) -> None:
        """Take a step's weights in."""
        averages, weights = self._pairs()
        floats = [number for number, value in enumerate(weights) if value.is_floating_point()]
        _many._foreach_lerp_([averages[n] for n in floats], [weights[n] for n in floats], 1 - self._decay)
        for average, value in zip(averages, weights, strict=True):
            if not value.is_floating_point():
                average.copy_(value)

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on with the average of a checkpoint."""
        for name, value in self.values.items():
            (own,), (kept,) = sharded_tensors.own([value]), sharded_tensors.own([tensors[name]])
            own.copy_(kept)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The model has the average for its weights in this block."""
        averages, weights = self._pairs()
        kept = [value.clone() for value in weights]
        with torch.no_grad():
            _many._foreach_copy_(weights, averages)
        try:
            yield
        finally:
            with torch.no_grad():
                _many._foreach_copy_(weights, kept)

    def _pairs(self) -> tuple[list[Tensor], list[Tensor]]:
        """This rank's parts of the average, and of the weights."""
        state = self._model.state_dict()
        return sharded_tensors.own(list(self.values.values())), sharded_tensors.own(
            [state[name] for name in self.values]
        )


def average_of(model: nn.Module, decay: float) -> Average | None:
    """The average that the settings ask for."""
    return Average(model, decay) if decay else None
