"""Which images a trial draws: about as many as were asked for, of hosts of every size, and always the same."""

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from altalign.pipelines.trial import sample as drawing
from altalign.pipelines.web.journal.log import host_of
from tests.pipelines.trial.test_bootstrap import recorded


@given(st.integers(1, 40_000), st.integers(1, 5_000))
def test_rates_add_up_to_what_is_wanted(wanted: int, images: int) -> None:
    pool = recorded(images).of_hosts
    at = drawing.rates(pool, wanted)
    assert ((at >= 0) & (at <= 1)).all()
    assert np.isclose((at * pool.images).sum(), min(wanted, pool.images.sum()))


def test_a_larger_sample_has_all_of_a_smaller_one_and_another_seed_draws_others() -> None:
    pool = recorded(20_000)
    hosts = pool.of_hosts

    def drawn(wanted: int, seed: int) -> np.ndarray:
        at = drawing.rates(hosts, wanted)[np.searchsorted(hosts.names, pool.hosts)]
        return drawing.is_drawn(pool.image_ids, at, seed)

    few, many, others = drawn(1_000, 0), drawn(3_000, 0), drawn(1_000, 1)
    assert not (few & ~many).any()
    assert 850 < few.sum() < 1_150
    assert (few & others).sum() < 0.4 * few.sum()
    assert len(np.unique(pool.hosts[many])) > 0.5 * len(hosts.names)  # of small ones too


def test_hosts_are_those_of_the_log() -> None:
    urls = [
        "https://A.example/x.png",
        "https://a.example:8080/y.png?z#w",
        "http://user:word@b.example/",
        "https://bücher.example/a",
        "http://[::1]:80/a",
        None,
        "no url",
    ]
    found = drawing.hosts_of(pa.chunked_array([urls], pa.string()))
    names = [host_of(url) for url in urls]
    assert names[:2] == ["a.example", "a.example"]
    for one, of_one in zip(names, found.tolist(), strict=True):
        assert [of_one == other for other in found.tolist()] == [one == name for name in names]
