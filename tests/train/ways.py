"""The ways of a GPU, taken on a CPU."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from altalign.train.model import normalise, text_tower
from altalign.train.step import optimizers


@contextmanager
def as_a_gpu() -> Iterator[None]:
    """Compute on a CPU as on a GPU."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (normalise, text_tower, optimizers):
            patch.setattr(module, "is_on_cpu", lambda _: False)
        yield
