"""Totals of a pool from a sample: right on average, inside their intervals, and exact where all is sampled."""

from collections import Counter, defaultdict
from typing import NamedTuple

import numpy as np
import pytest

from altalign.pipelines.trial import drawing
from altalign.pipelines.trial.estimates import Drawn, Estimate, Hosts, Quantity, estimates, groups, size_class

SEEDS = 50


class Pool(NamedTuple):
    """A pool whose whole result is known: images, their hosts, and each quantity with its kind."""

    image_ids: np.ndarray
    hosts: np.ndarray
    pairs: np.ndarray
    quantities: dict[str, tuple[np.ndarray, bool, bool]]

    @property
    def of_hosts(self) -> Hosts:
        return drawing.added(self.hosts, np.ones(len(self.hosts), np.int64), self.pairs)


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
    is_near = came & ~is_small & (random.random(count) < 0.002)
    kept = came & ~is_small & ~is_near
    pairs = 1 + random.poisson(0.7, count) * (random.random(count) < 0.3)
    seconds = speed[host] * random.lognormal(0, 0.4, count) + 5 * ~came
    of = {
        **{f"{name} images": (mask, False, True) for name, mask in {"fetched": came, "kept": kept}.items()},
        **{f"{name} pairs": (mask * pairs, True, True) for name, mask in {"fetched": came, "kept": kept}.items()},
        "dead images": (~came, False, True),
        "too small images": (is_small, False, True),
        "too small pairs": (is_small * pairs, True, True),
        "near pairs": (is_near * pairs, True, True),
        "bytes": (np.where(came, size[host] * random.lognormal(0, 0.5, count), 0), False, False),
        "seconds": (seconds, False, False),
    }
    names = random.integers(0, 1 << 63, 400).astype(np.uint64)[host]
    return Pool(random.integers(0, 256, (count, 16), np.uint8), names, pairs.astype(np.int64), of)


def estimated(pool: Pool, wanted: int, seed: int) -> tuple[dict[str, Estimate], np.ndarray]:
    """The estimates of all quantities from one sample, and which images it has."""
    hosts = pool.of_hosts
    rates = drawing.rates(hosts, wanted)[np.searchsorted(hosts.names, pool.hosts)]
    mask = drawing.is_drawn(pool.image_ids, rates, seed)
    wanted_of = [
        Quantity(values[mask].astype(np.float64), is_of_pairs, is_count)
        for values, is_of_pairs, is_count in pool.quantities.values()
    ]
    found = estimates(Drawn(pool.hosts[mask], rates[mask], pool.pairs[mask]), hosts, wanted_of)
    return dict(zip(pool.quantities, found, strict=True)), mask


def covered(pool: Pool, wanted: int) -> tuple[Counter[str], dict[str, float]]:
    """In how many of the seeds each truth is in its interval; half of the mean width, as a share of the truth."""
    inside, widths = Counter[str](), defaultdict[str, float](float)
    for seed in range(SEEDS):
        for name, (value, least, most) in estimated(pool, wanted, seed)[0].items():
            truth = pool.quantities[name][0].sum()
            assert least <= value <= most
            inside[name] += least <= truth <= most
            widths[name] += (most - least) / 2 / truth / SEEDS
    return inside, widths


def test_the_truth_is_in_nine_of_ten_intervals() -> None:
    inside, _ = covered(recorded(30_000), 2_000)
    assert {name: of for name, of in inside.items() if of < 0.9 * SEEDS} == {}


@pytest.mark.runs
def test_twenty_thousand_images_say_each_amount_to_a_tenth() -> None:
    """But for what is rarer than one image in twenty."""
    pool = recorded(200_000)
    inside, widths = covered(pool, 20_000)
    assert {name: of for name, of in inside.items() if of < 0.9 * SEEDS} == {}
    rare = 0.05 * len(pool.hosts)
    frequent = [name for name, (values, _, _) in pool.quantities.items() if np.count_nonzero(values) >= rare]
    assert len(frequent) > 6
    assert {name: widths[name] for name in frequent if widths[name] > 0.1} == {}


def test_a_sample_of_everything_is_the_truth() -> None:
    pool = recorded(2_000)
    found, mask = estimated(pool, len(pool.hosts), 0)
    assert mask.all()
    for name, (values, _, _) in pool.quantities.items():
        assert np.allclose(found[name], values.sum()), name


def test_totals_are_what_plain_loops_add_up() -> None:
    pool = recorded(3_000)
    found, mask = estimated(pool, 500, 1)
    hosts = pool.of_hosts
    rates = drawing.rates(hosts, 500)[np.searchsorted(hosts.names, pool.hosts)]
    drawn = Drawn(pool.hosts[mask], rates[mask], pool.pairs[mask])
    for name, (values, is_of_pairs, _) in pool.quantities.items():
        total = 0.0
        for group in groups(drawn, hosts):
            above = below = 0.0
            for number in group.images.tolist():
                above += values[mask][number] / drawn.rates[number]
                below += (drawn.pairs[number] if is_of_pairs else 1) / drawn.rates[number]
            total += group.totals[is_of_pairs] * above / below
        assert found[name].value == pytest.approx(total)


def test_groups_have_every_image_once_and_stand_for_the_whole_pool() -> None:
    pool = recorded(5_000)
    hosts = pool.of_hosts
    rates = drawing.rates(hosts, 800)[np.searchsorted(hosts.names, pool.hosts)]
    mask = drawing.is_drawn(pool.image_ids, rates, 0)
    found = groups(Drawn(pool.hosts[mask], rates[mask], pool.pairs[mask]), hosts)
    assert sorted(np.concatenate([group.images for group in found]).tolist()) == list(range(int(mask.sum())))
    assert sum(group.totals[0] for group in found) == len(pool.hosts)
    assert sum(group.totals[1] for group in found) == pool.pairs.sum()


def test_what_was_not_seen_has_an_upper_bound_and_hosts_that_die_whole_widen_an_interval() -> None:
    random = np.random.default_rng(0)
    hosts = np.repeat(random.integers(0, 1 << 63, 100).astype(np.uint64), 8)
    pool = drawing.added(hosts, np.ones(800, np.int64), np.ones(800, np.int64))
    mask = np.arange(800) % 8 < 1  # one image of each host
    of_hosts, of_images = np.repeat(np.arange(100) % 2, 8), np.arange(800) // 8 % 2
    several = np.arange(800) % 8 < 4
    drawn = Drawn(hosts[mask], np.full(100, 0.125), np.ones(100, np.int64))
    (nothing,) = estimates(drawn, pool, [Quantity(np.zeros(100), is_of_pairs=False, is_count=True)])
    assert nothing.value == nothing.least == 0
    assert 20 < nothing.most < 40  # 3.7 images at a rate of an eighth
    assert (of_hosts == of_images).all()
    drawn = Drawn(hosts[several], np.full(400, 0.5), np.ones(400, np.int64))
    both = of_hosts[several], random.permutation(of_images[several])
    amounts = [Quantity(of.astype(np.float64), is_of_pairs=False, is_count=False) for of in both]
    together, apart = estimates(drawn, pool, amounts)
    assert together.most - together.least > 1.5 * (apart.most - apart.least)


def test_hosts_are_in_classes_of_four_times_the_size() -> None:
    sizes = np.array([1, 3, 4, 15, 16, 63, 64])
    assert size_class(sizes).tolist() == [0, 0, 1, 1, 2, 2, 3]
