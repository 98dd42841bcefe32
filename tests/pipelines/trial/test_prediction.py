"""Hours: of what lasts longest, with an interval where a sample says anything of it."""

import numpy as np
import pytest

from altalign.curation import CurateConfig
from altalign.pipelines.trial import prediction
from altalign.pipelines.trial.estimates import Drawn, Hosts
from altalign.pipelines.trial.outcomes import Outcomes

CONFIG = CurateConfig.from_values(
    {
        "run": {"folder": "run"},
        "input": [{"kind": "table", "paths": ["a.csv"], "url_column": "url", "caption_column": "text"}],
        "fetch": {"source": "web"},
    },
    where="test",
)


def hours(seconds: np.ndarray, images: int) -> prediction.Machines:
    """On one machine, of a host with so many images, of which these were asked for."""
    count = len(seconds)
    pool = Hosts(np.array([7], np.uint64), np.array([images]), np.array([images]))
    drawn = Drawn(np.full(count, 7, np.uint64), np.full(count, count / images), np.ones(count, np.int64))
    of = Outcomes({}, np.full(count, 1e5), np.zeros(count), seconds)
    return prediction.predict(CONFIG, drawn, pool, of, prediction.Measured(None, None, None, None)).machines[0]


def test_a_server_that_hangs_holds_up_the_end() -> None:
    found = hours(np.array([*[0.01] * 99, 30.0]), 100)
    assert found.limit == "one image"
    assert found.hours.value * 3_600 == pytest.approx(30)


def test_the_pace_of_a_slow_host_has_an_interval() -> None:
    found = hours(np.random.default_rng(2).lognormal(1, 1, 200), 20_000)
    assert found.limit == "one host"
    assert found.hours.least < 0.99 * found.hours.value < found.hours.value < 0.99 * found.hours.most
