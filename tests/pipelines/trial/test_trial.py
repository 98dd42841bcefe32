"""Samples and predictions: right on average, inside their intervals, and exact where all is sampled."""

from collections import Counter, defaultdict
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from altalign.data.reasons import Stage
from altalign.filters.one_url import host_of
from altalign.pipelines.trial import prediction
from altalign.pipelines.trial import sample as drawing
from altalign.pipelines.trial.prediction import Outcomes, interval, strata, totals
from altalign.pipelines.trial.sample import Hosts, Sample, size_class
from altalign.settings.curate import CurateConfig

SEEDS = 50


class Pool(NamedTuple):
    """A pool whose whole result is known: images, their hosts, and each quantity, with whether it is of pairs."""

    image_ids: np.ndarray
    hosts: np.ndarray
    pairs: np.ndarray
    quantities: dict[str, tuple[np.ndarray, bool]]

    @property
    def of_hosts(self) -> Hosts:
        return drawing.added([Hosts(self.hosts, np.ones(len(self.hosts), np.int64), self.pairs)])


def recorded(images: int, *, seed: int = 3) -> Pool:
    """400 hosts of very different size, liveness, pictures and speed; all images of a host are much alike."""
    random = np.random.default_rng(seed)
    sizes = np.maximum(1, images * random.dirichlet(np.full(400, 0.3))).astype(int)
    live, small = random.beta(0.5, 0.5, 400), random.beta(0.6, 3, 400)
    size, speed = random.lognormal(11, 0.7, 400), random.lognormal(-1, 1, 400)
    host = np.repeat(np.arange(400), sizes)
    count = len(host)
    came = random.random(count) < live[host]
    is_small = came & (random.random(count) < small[host])
    kept = came & ~is_small
    pairs = 1 + random.poisson(0.7, count) * (random.random(count) < 0.3)
    seconds = speed[host] * random.lognormal(0, 0.4, count) + 5 * ~came
    of = {
        **{f"{name} images": (mask, False) for name, mask in {"fetched": came, "kept": kept}.items()},
        **{f"{name} pairs": (mask * pairs, True) for name, mask in {"fetched": came, "kept": kept}.items()},
        "dead images": (~came, False),
        "too small images": (is_small, False),
        "too small pairs": (is_small * pairs, True),
        "bytes": (np.where(came, size[host] * random.lognormal(0, 0.5, count), 0), False),
        "seconds": (seconds, False),
    }
    names = random.integers(0, 1 << 63, 400).astype(np.uint64)[host]
    return Pool(random.integers(0, 256, (count, 16), np.uint8), names, pairs.astype(np.int64), of)


def drawn(pool: Pool, images: int, seed: int) -> tuple[Sample, np.ndarray]:
    """A sample of about so many images, and which images it has."""
    hosts = pool.of_hosts
    rates, places = drawing.rates(hosts, images), np.searchsorted(hosts.names, pool.hosts)
    mask = drawing.is_drawn(pool.image_ids, rates[places], seed)
    return Sample(places[mask], pool.pairs[mask], rates), mask


def estimated(pool: Pool, images: int, seed: int) -> dict[str, tuple[float, float, float]]:
    """The estimates of all quantities from one sample."""
    sample, mask = drawn(pool, images, seed)
    values = np.stack([values[mask].astype(np.float64) for values, _ in pool.quantities.values()], axis=1)
    replicates = totals(sample, pool.of_hosts, values, np.array([is_pair for _, is_pair in pool.quantities.values()]))
    return {name: interval(replicates[:, number]) for number, name in enumerate(pool.quantities)}


def covered(pool: Pool, images: int) -> tuple[Counter[str], dict[str, float]]:
    """In how many of the seeds each truth is in its interval; half of the mean width, as a share of the truth."""
    inside, widths = Counter[str](), defaultdict[str, float](float)
    for seed in range(SEEDS):
        for name, (value, least, most) in estimated(pool, images, seed).items():
            truth = pool.quantities[name][0].sum()
            assert least <= value <= most
            inside[name] += least <= truth <= most
            widths[name] += (most - least) / 2 / truth / SEEDS
    return inside, widths


def test_the_truth_is_in_nine_of_ten_intervals() -> None:
    inside, _ = covered(recorded(30_000), 2_000)
    assert {name: times for name, times in inside.items() if times < 0.9 * SEEDS} == {}


@pytest.mark.runs
def test_twenty_thousand_images_say_each_amount_to_a_tenth() -> None:
    inside, widths = covered(recorded(200_000), 20_000)
    assert {name: times for name, times in inside.items() if times < 0.85 * SEEDS} == {}
    assert {name: width for name, width in widths.items() if width > 0.1} == {}


def test_a_sample_of_everything_is_the_truth() -> None:
    pool = recorded(2_000)
    assert drawn(pool, len(pool.hosts), 0)[1].all()
    for name, value in estimated(pool, len(pool.hosts), 0).items():
        assert np.allclose(value, pool.quantities[name][0].sum()), name


def test_totals_are_what_plain_loops_add_up() -> None:
    pool = recorded(3_000)
    hosts, (sample, mask) = pool.of_hosts, drawn(pool, 500, 1)
    stratum, _ = strata(sample, hosts)
    for name, value in estimated(pool, 500, 1).items():
        values, is_of_pairs = pool.quantities[name]
        total = 0.0
        for number in set(stratum[sample.hosts].tolist()):
            above = below = 0.0
            for image in np.flatnonzero(stratum[sample.hosts] == number).tolist():
                rate = sample.rates[sample.hosts[image]]
                above += values[mask][image] / rate
                below += (sample.pairs[image] if is_of_pairs else 1) / rate
            total += (hosts.pairs if is_of_pairs else hosts.images)[stratum == number].sum() * above / below
        assert value[0] == pytest.approx(total)


def test_hosts_that_are_gone_as_wholes_widen_an_interval() -> None:
    random = np.random.default_rng(0)
    hosts = np.repeat(np.arange(100), 8)
    pool = Hosts(np.arange(100).astype(np.uint64), np.full(100, 8), np.full(100, 8))
    several = np.arange(800) % 8 < 4
    sample = Sample(hosts[several], np.ones(400, np.int64), np.full(100, 0.5))
    is_gone = sample.hosts % 2
    values = np.stack([is_gone, random.permutation(is_gone)], axis=1).astype(np.float64)
    replicates = totals(sample, pool, values, np.zeros(2, np.bool_))
    together, apart = (most - least for _, least, most in (interval(replicates[:, of]) for of in (0, 1)))
    assert together > 1.5 * apart


def test_a_large_host_is_a_stratum_and_all_others_are_one_that_has_images_of_the_sample() -> None:
    sizes = np.array([2] * 23 + [400, 300])
    pool = Hosts(np.arange(25).astype(np.uint64), sizes, sizes)
    hosts, rates = np.r_[np.arange(12), np.full(40, 23), np.full(30, 24)], np.full(25, 0.1)
    stratum, is_alone = strata(Sample(hosts, np.ones(82, np.int64), rates), pool)
    assert is_alone.tolist() == [False] * 23 + [True] * 2
    assert stratum.tolist() == [0] * 23 + [1, 2]
    alone, _ = strata(Sample(hosts[12:], np.ones(70, np.int64), rates), pool)
    assert alone.tolist() == [0] * 24 + [1]  # it stands for those of which the sample has none


def test_hosts_are_in_classes_of_four_times_the_size() -> None:
    sizes = np.array([1, 3, 4, 15, 16, 63, 64])
    assert size_class(sizes).tolist() == [0, 0, 1, 1, 2, 2, 3]


# Which images are drawn -----------------------------------------------------------------------------------------------


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
    names = [host_of(url or "") for url in urls]
    assert names[:2] == ["a.example", "a.example"]
    for one, of_one in zip(names, found.tolist(), strict=True):
        assert [of_one == other for other in found.tolist()] == [one == name for name in names]


# Hours, and intervals -------------------------------------------------------------------------------------------------


CONFIG = CurateConfig.from_values(
    {
        "run": {"folder": "run"},
        "input": [{"kind": "table", "paths": ["a.csv"], "url_column": "url", "caption_column": "text"}],
        "fetch": {"source": "web"},
    },
    where="test",
)


def hours(seconds: np.ndarray, images: int) -> tuple[float, float, float]:
    """Hours of a host with so many images, of which these were asked for."""
    count = len(seconds)
    pool = Hosts(np.array([7], np.uint64), np.array([images]), np.array([images]))
    sample = Sample(np.zeros(count, np.int64), np.ones(count, np.int64), np.array([count / images]))
    of = Outcomes({}, np.full(count, 1e5), np.zeros(count), seconds)
    row = prediction.predict(CONFIG, sample, pool, of, {})[-1]
    assert row["of"] == "hours"
    return row["value"], row["least"], row["most"]


def test_a_server_that_hangs_holds_up_the_end() -> None:
    assert hours(np.array([*[0.01] * 99, 30.0]), 100)[0] * 3_600 == pytest.approx(30, rel=1e-5)


def test_the_pace_of_a_slow_host_has_an_interval() -> None:
    value, least, most = hours(np.random.default_rng(2).lognormal(1, 1, 200), 20_000)
    assert least < 0.99 * value < value < 0.99 * most


def test_an_interval_that_would_rest_on_few_images_is_left_out() -> None:
    pool = Hosts(np.array([7], np.uint64), np.array([1_000]), np.array([1_000]))
    sample = Sample(np.zeros(100, np.int64), np.ones(100, np.int64), np.array([0.1]))
    dropped = {number: (Stage.FETCH, "http_status" if number < 9 else "http_timeout") for number in range(19)}
    of = Outcomes(dropped, np.ones(100), np.ones(100), np.ones(100))
    rows = {(row["reason"], row["of"]): row for row in prediction.predict(CONFIG, sample, pool, of, {})}
    assert rows["http_status", "images"] == {
        "stage": "fetch", "reason": "http_status", "of": "images", "value": 90, "least": None, "most": None,
    }  # fmt: skip
    assert rows["http_timeout", "images"]["least"] < 100 < rows["http_timeout", "images"]["most"]


def test_what_stays_where_near_duplicates_of_the_pool_go_has_no_lower_end() -> None:
    pool = Hosts(np.array([7], np.uint64), np.array([1_000]), np.array([1_000]))
    sample = Sample(np.zeros(100, np.int64), np.ones(100, np.int64), np.array([0.1]))
    of = Outcomes(dict.fromkeys(range(20), (Stage.DECONTAMINATE, "a")), *np.ones((3, 100)))
    config = CONFIG.model_copy(update={"dedup": CONFIG.dedup.model_copy(update={"within_pool": "keep_one_image"})})
    rows = {(row["stage"], row["of"]): row for row in prediction.predict(config, sample, pool, of, {})}
    assert rows["decontaminate", "pairs"]["least"] == rows["shards", "bytes of shards"]["least"] == 0
    assert rows["fetch", "pairs"]["least"] > 0
