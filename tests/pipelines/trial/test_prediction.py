"""Hours of what lasts longest, and which estimates have an interval."""

import numpy as np
import pytest

from altalign.data.reasons import Stage
from altalign.pipelines.trial import prediction
from altalign.pipelines.trial.prediction import Estimate, Outcomes
from altalign.pipelines.trial.sample import Hosts, Sample
from altalign.settings.curate import CurateConfig

CONFIG = CurateConfig.from_values(
    {
        "run": {"folder": "run"},
        "input": [{"kind": "table", "paths": ["a.csv"], "url_column": "url", "caption_column": "text"}],
        "fetch": {"source": "web"},
    },
    where="test",
)


def hours(seconds: np.ndarray, images: int) -> Estimate:
    """Hours of a host with so many images, of which these were asked for."""
    count = len(seconds)
    pool = Hosts(np.array([7], np.uint64), np.array([images]), np.array([images]))
    sample = Sample(np.zeros(count, np.int64), np.ones(count, np.int64), np.array([count / images]))
    of = Outcomes({}, np.full(count, 1e5), np.zeros(count), seconds)
    return prediction.predict(CONFIG, sample, pool, of, {}).estimates[prediction.Quantity("all", "kept", "hours")]


def test_a_server_that_hangs_holds_up_the_end() -> None:
    assert hours(np.array([*[0.01] * 99, 30.0]), 100).value * 3_600 == pytest.approx(30)


def test_the_pace_of_a_slow_host_has_an_interval() -> None:
    value, least, most = hours(np.random.default_rng(2).lognormal(1, 1, 200), 20_000)
    assert least < 0.99 * value < value < 0.99 * most


def test_an_interval_that_would_rest_on_few_images_is_left_out() -> None:
    pool = Hosts(np.array([7], np.uint64), np.array([1_000]), np.array([1_000]))
    sample = Sample(np.zeros(100, np.int64), np.ones(100, np.int64), np.array([0.1]))
    dropped = {number: (Stage.FETCH, "http_status" if number < 9 else "http_timeout") for number in range(19)}
    of = Outcomes(dropped, np.ones(100), np.ones(100), np.ones(100))
    rows = {
        (row["reason"], row["of"]): row for row in prediction.rows(prediction.predict(CONFIG, sample, pool, of, {}))
    }
    assert rows["http_status", "images"] == {
        "stage": "fetch", "reason": "http_status", "of": "images", "value": 90, "least": None, "most": None,
    }  # fmt: skip
    assert rows["http_timeout", "images"]["least"] < 100 < rows["http_timeout", "images"]["most"]
