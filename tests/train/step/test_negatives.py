"""Hard negatives by source."""

import pytest
import torch

from altalign.train.step.accumulation import StepResult
from altalign.train.step.learner import negatives_by_source
from altalign.train.step.loss import negatives_log_p
from tests.train.pairs import drawn


def test_each_source_of_the_batch_has_the_mean_of_its_pairs() -> None:
    images, texts = drawn(6, seed=1)
    result = StepResult(loss=0.0, temperature=0.1, drift=0.0, embeddings=(images, texts))
    own = ["one", "two", "one", "one", "two", "one"]
    of_pairs = negatives_log_p(images, texts, images.new_tensor(0.1), block=4)
    assert negatives_by_source(result, own, ["absent", "one", "two"], block=4) == pytest.approx(
        {
            "one": of_pairs[torch.tensor([0, 2, 3, 5])].mean().item(),
            "two": of_pairs[torch.tensor([1, 4])].mean().item(),
        }
    )
