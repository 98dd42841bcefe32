"""Settings that were removed: what they say now is taken, and anything else is refused with what to do."""

from typing import Any

import pytest

from altalign.errors import UsageError
from altalign.train.settings.training import TrainConfig


def test_a_removed_setting_that_says_what_holds_now_is_passed_over() -> None:
    before = {"loop": {"compile": False, "search_convolutions": True, "chunk": 64}, "optimizer": {"momentum": 0.9}}
    now = {"loop": {"chunk": 64}}
    assert TrainConfig.from_values(before, where="test") == TrainConfig.from_values(now, where="test")


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ({"data": {"tars": ["a.tar"], "tables": ["b.parquet"]}}, {"data": {"files": ["a.tar", "b.parquet"]}}),
        ({"loss": {"temperature_at_most": 2.0}}, {"loss": {"temperature_range": [1e-6, 2.0]}}),
        (
            {"evaluation": {"retrieval": [{"name": "a", "kind": "run", "paths": ["b"]}]}},
            {"evaluation": {"retrieval": [{"name": "a", "path": "b"}]}},
        ),
    ],
)
def test_a_setting_of_another_name_is_read_as_it_was(before: dict[str, Any], now: dict[str, Any]) -> None:
    assert TrainConfig.from_values(before, where="test") == TrainConfig.from_values(now, where="test")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"data": {"same_image_once_a_batch": True}}, 'write sampling = "distinct_images"'),
        ({"optimizer": {"clip_norm": 1.0}}, "take it out"),
        ({"optimizer": {"momentum": 0.5}}, "write beta1, which SGD and LARS read as their momentum"),
        ({"loop": {"checkpointed_stages": 2}}, 'write recompute = "large"'),
    ],
)
def test_another_value_is_refused_with_what_takes_its_place(values: dict[str, dict[str, object]], message: str) -> None:
    ((section, settings),) = values.items()
    ((name, value),) = settings.items()
    with pytest.raises(UsageError) as error:
        TrainConfig.from_values(values, where="mine.toml")
    assert (
        str(error.value) == f"mine.toml: [{section}] {name} = {value!r}: there is no such setting any more; {message}"
    )
