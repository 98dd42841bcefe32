"""How a GPU is set up; what of it is measured needs one."""

from collections.abc import Iterator

import pytest
import torch

from altalign.train.settings.training import Precision
from altalign.train.step import learner

BACKENDS = torch.backends.cudnn


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    before = BACKENDS.benchmark, BACKENDS.allow_tf32, torch.get_float32_matmul_precision()
    yield
    BACKENDS.benchmark, BACKENDS.allow_tf32 = before[:2]
    torch.set_float32_matmul_precision(before[2])


@pytest.mark.parametrize(
    ("precision", "is_rounded", "products"),
    [("float32", False, "highest"), ("tf32", True, "high"), ("bfloat16", False, "highest")],
)
def test_a_gpu_searches_convolutions_and_rounds_factors_as_the_precision_says(
    precision: Precision, products: str, *, is_rounded: bool
) -> None:
    learner.prepare(precision, torch.device("cuda"))
    assert BACKENDS.benchmark
    assert BACKENDS.allow_tf32 == is_rounded
    assert torch.get_float32_matmul_precision() == products


def test_a_cpu_stays_as_it_is() -> None:
    BACKENDS.benchmark = False
    torch.set_float32_matmul_precision("medium")
    learner.prepare("tf32", torch.device("cpu"))
    assert not BACKENDS.benchmark
    assert torch.get_float32_matmul_precision() == "medium"


@pytest.mark.parametrize(("precision", "kind"), [("tf32", torch.float32), ("bfloat16", torch.bfloat16)])
def test_towers_compute_in_bfloat16_alone_where_they_are_told_to(precision: Precision, kind: torch.dtype) -> None:
    with learner.autocast(precision, torch.device("cpu"))():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == kind
