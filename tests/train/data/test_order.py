"""The order of training: permutations are permutations, quotas are exact, positions alone decide, an image is once in a
batch.
"""

import itertools
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from altalign.errors import UsageError
from altalign.train.data import order
from altalign.train.data.index import Weights
from altalign.train.data.order import DistinctImages, OneSource, Order, Sampler, keyed, permuted, quotas
from tests.train.plain_draws import ALL_BITS, plain_keyed, plain_permuted


def whole(size: int, key: int) -> np.ndarray:
    return permuted(np.arange(size, dtype=np.uint64), np.full(size, size, np.uint64), np.full(size, key, np.uint64))


@pytest.mark.parametrize("size", range(1, 130))
def test_it_is_a_permutation_of_every_small_size(size: int) -> None:
    for key in (0, 1, ALL_BITS):
        assert sorted(whole(size, key).tolist()) == list(range(size))


@given(st.integers(1, 3000), st.integers(0, ALL_BITS))
@settings(derandomize=True, deadline=None, max_examples=30)
def test_it_is_a_permutation_and_agrees_with_its_plain_twin(size: int, key: int) -> None:
    found = whole(size, key).tolist()
    assert sorted(found) == list(range(size))
    assert found[:40] == [plain_permuted(place, size, key) for place in range(min(size, 40))]


@given(
    st.lists(
        st.integers(1, 2**62).flatmap(
            lambda size: st.tuples(st.integers(0, size - 1), st.just(size), st.integers(0, ALL_BITS))
        ),
        min_size=1,
        max_size=30,
    )
)
@settings(derandomize=True, deadline=None, max_examples=30)
def test_sizes_and_keys_may_be_mixed_and_huge(asked: list[tuple[int, int, int]]) -> None:
    places, sizes, keys = (np.array(column, np.uint64) for column in zip(*asked, strict=True))
    assert permuted(places, sizes, keys).tolist() == [plain_permuted(*each) for each in asked]


def test_small_permutations_are_all_there_and_as_likely() -> None:
    counts = Counter(tuple(whole(4, int(keyed(5, key)[0])).tolist()) for key in range(4800))
    assert len(counts) == 24
    assert sum((count - 200) ** 2 / 200 for count in counts.values()) < 60  # 23 degrees of freedom: once in 30,000


def test_neighbours_go_far_apart_and_epochs_do_not_resemble_each_other() -> None:
    first, second = (whole(10_000, int(keyed(0, epoch)[0])).astype(np.int64) for epoch in (0, 1))
    assert abs(np.corrcoef(first[:-1], first[1:])[0, 1]) < 0.05  # 5 standard errors of 1 / sqrt(n)
    assert abs(np.corrcoef(first, np.arange(10_000))[0, 1]) < 0.05
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.05
    assert (first == second).sum() < 10  # one is expected


@given(st.lists(st.tuples(st.integers(0, 50), st.floats(0, 1e6)), min_size=1, max_size=6), st.integers(0, 1000))
@settings(derandomize=True, deadline=None, max_examples=60)
def test_quotas_are_whole_and_within_one_of_their_share(sources: list[tuple[int, float]], draws: int) -> None:
    weights = [weight for _, weight in sources]
    if not sum(weights):
        return
    found = quotas(weights, draws)
    assert sum(found) == draws
    for count, weight in zip(found, weights, strict=True):
        assert abs(count - draws * weight / sum(weights)) < 1 + 1e-6
        assert weight or not count


@given(st.lists(st.integers(0, 40), min_size=1, max_size=4).filter(sum), st.integers(0, 5), st.integers(0, 3))
@settings(derandomize=True, deadline=None, max_examples=40)
def test_in_proportion_to_size_an_epoch_has_every_pair_once(sizes: list[int], seed: int, epoch: int) -> None:
    stream = Order({f"s{number}": size for number, size in enumerate(sizes)}, {}, seed)
    pairs, epochs = stream.draws(epoch * sum(sizes), (epoch + 1) * sum(sizes))
    assert sorted(pairs.tolist()) == list(range(sum(sizes)))
    assert set(epochs.tolist()) == {epoch}


def plain_weighted(sizes: dict[str, int], weights: dict[str, float], epochs: int) -> Counter[str]:
    total = sum(size for name, size in sizes.items() if weights[name])
    shares = {name: total * weights[name] / sum(weights.values()) for name in sizes}
    counts = Counter({name: int(share) for name, share in shares.items()})
    for name in sorted(sizes, key=lambda name: counts[name] - shares[name])[: total - sum(counts.values())]:
        counts[name] += 1
    return Counter({name: count * epochs for name, count in counts.items()})


def test_weights_decide_what_an_epoch_has_of_a_source_and_each_source_is_gone_through_evenly() -> None:
    sizes, weights = {"large": 100, "none": 30, "small": 7}, {"large": 0.5, "none": 0.0, "small": 0.25}
    stream = Order(sizes, weights, 3)
    assert stream.epoch_draws == 107
    pairs, epochs = stream.draws(0, 5 * 107)
    source = np.array(["large"] * 100 + ["none"] * 30 + ["small"] * 7)[pairs]
    assert Counter(source.tolist()) == +plain_weighted(sizes, weights, 5)
    for name in ("large", "small"):
        times = Counter(pairs[source == name].tolist())
        assert max(times.values()) - min(times.values()) <= 1
        assert len(times) == sizes[name]
    for draws in np.split(np.arange(535), 5):
        assert Counter(source[draws].tolist()) == +plain_weighted(sizes, weights, 1)
    # a pair is in an epoch of its source once
    assert len(set(zip(pairs.tolist(), epochs.tolist(), strict=True))) == 535


@given(st.integers(0, 400), st.integers(0, 100), st.integers(0, 100))
@settings(derandomize=True, deadline=None, max_examples=30)
def test_draws_depend_on_their_positions_alone(first: int, count: int, more: int) -> None:
    stream = Order({"a": 50, "b": 23}, {"a": 1.0, "b": 2.0}, 1)
    wide = stream.draws(first, first + count + more)
    narrow = stream.draws(first + count, first + count + more)
    assert [column[count:].tolist() for column in wide] == [column.tolist() for column in narrow]


def test_another_seed_is_another_order_and_the_same_is_the_same() -> None:
    orders = [Order({"a": 1000}, {}, seed).draws(0, 1000)[0].tolist() for seed in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]


def test_the_order_is_fixed_for_ever() -> None:
    assert Order({"a": 1_800_000_000, "b": 5}, {}, 0).draws(1_800_000_000, 1_800_000_008)[0].tolist() == GOLDEN_DRAWS


GOLDEN_DRAWS = [1413951880, 468521555, 505141578, 1473298033, 10176597, 584203555, 1658131246, 967856756]


def test_a_batch_may_span_epochs() -> None:
    pairs, epochs = Sampler(Order({"a": 10}, {}, 0), 8).batch(1)
    assert epochs.tolist() == [0, 0, 1, 1, 1, 1, 1, 1]
    assert len(pairs) == 8


@pytest.mark.parametrize(
    ("sources", "weights", "says"),
    [
        ({}, {}, "no pair to train on"),
        ({"a": 0}, {}, "no pair to train on"),
        ({"a": 5}, {"b": 1.0}, "b: no such source in the runs; there are a"),
        ({"a": 5, "b": 5}, {"b": 1.0}, "no weight for a"),
        ({"a": 5, "b": 0}, {"a": 1.0, "b": 1.0}, "b has no pairs"),
        ({"a": 5, "b": 5}, {"a": 1.0, "b": 1e-9}, "b = 1e-09 gives it none of an epoch's 10 draws"),
    ],
)
def test_sources_that_cannot_be_drawn_are_refused(
    sources: dict[str, int], weights: dict[str, float], says: str
) -> None:
    with pytest.raises(UsageError, match=says) as error:
        Order(sources, weights, 0)
    assert "\n" not in str(error.value)


def test_a_spare_is_of_the_same_source_and_others_are_tried_next() -> None:
    stream = Order({"a": 100, "b": 50}, {}, 0)
    spares = {stream.spare(120, 7, attempt) for attempt in range(400)}
    assert spares == set(range(100, 150))
    assert stream.spare(120, 7, 0) == Order({"a": 100, "b": 50}, {}, 0).spare(149, 7, 0)


def plain_distinct(stream: Order, size: int, images: np.ndarray, batches: int) -> list[list[tuple[int, int]]]:
    """The slow twin of `DistinctImages`."""
    draws = (
        (int(pair), int(epoch))
        for position in itertools.count()
        for pair, epoch in zip(*stream.draws(position, position + 1), strict=True)
    )
    waiting: list[tuple[int, int]] = []
    done = []
    for _ in range(batches):
        batch: list[tuple[int, int]] = []
        have, still = set(), []
        while len(batch) < size:
            draw = waiting.pop(0) if waiting else next(draws)
            if images[draw[0]] in have:
                still.append(draw)
            else:
                have.add(images[draw[0]])
                batch.append(draw)
        waiting = still + waiting
        done.append(batch)
    return done


@given(st.integers(8, 60), st.integers(1, 8), st.integers(0, 9))
@settings(derandomize=True, deadline=None, max_examples=25)
def test_an_image_is_once_in_a_batch_as_a_plain_loop_has_it(pairs: int, size: int, seed: int) -> None:
    images = (np.arange(pairs) % max(size, pairs // 3)).astype(np.uint64)
    stream = Order({"a": pairs}, {}, seed)
    expected = plain_distinct(stream, size, images, 8)
    sampler = DistinctImages(stream, size, images.__getitem__)
    found = [list(zip(*(column.tolist() for column in sampler.batch(number)), strict=True)) for number in range(8)]
    assert found == expected
    assert all(len({images[pair] for pair, _ in batch}) == size for batch in found)


def test_distinct_images_go_on_from_a_state_or_from_the_start() -> None:
    images = (np.arange(40) % 9).astype(np.uint64)
    stream = Order({"a": 40}, {}, 2)
    straight = DistinctImages(stream, 8, images.__getitem__)
    expected = [straight.batch(number)[0].tolist() for number in range(12)]
    replayed = DistinctImages(stream, 8, images.__getitem__)
    assert replayed.batch(9)[0].tolist() == expected[9]
    assert replayed.batch(4)[0].tolist() == expected[4]
    resumed = DistinctImages(stream, 8, images.__getitem__)
    resumed.resume(7, straight.state(7))
    assert [resumed.batch(number)[0].tolist() for number in (7, 8, 9)] == expected[7:10]
    assert resumed.batch(3)[0].tolist() == expected[3]  # before what it was resumed from: again from the start
    assert straight.state(7).pairs  # some do wait


def test_fewer_images_than_a_batch_has_pairs_are_refused() -> None:
    images = np.zeros(40, np.uint64)
    with pytest.raises(UsageError, match="1 images were found for a global batch of 2 pairs"):
        DistinctImages(Order({"a": 40}, {}, 0), 2, images.__getitem__).batch(0)


def test_a_queue_that_only_grows_is_refused() -> None:
    images = np.maximum(np.arange(40), 30).astype(np.uint64)  # 31 pairs of one image, 9 of others
    sampler = DistinctImages(Order({"a": 40}, {}, 0), 8, images.__getitem__)
    with pytest.raises(UsageError, match="pairs wait, more than two epochs have"):
        [sampler.batch(number) for number in range(100)]


def test_the_queue_is_cut_off_from_states_that_nobody_will_ask_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order.DistinctImages, "_KEPT", 3)
    images = (np.arange(40) % 9).astype(np.uint64)
    sampler = DistinctImages(Order({"a": 40}, {}, 2), 8, images.__getitem__)
    for number in range(10):
        sampler.batch(number)
    assert sorted(sampler._states) == [7, 8, 9, 10]
    assert sampler.batch(1)[0].tolist() == DistinctImages(sampler.order, 8, images.__getitem__).batch(1)[0].tolist()


# One source a batch --------------------------------------------------------------------------------------------------


def sources_of(pairs: np.ndarray, sizes: dict[str, int]) -> set[str]:
    ends = dict(zip(sizes, itertools.accumulate(sizes.values()), strict=True))
    return {next(name for name, end in ends.items() if pair < end) for pair in pairs.tolist()}


def test_in_sequence_an_epoch_goes_through_source_after_source() -> None:
    stream = Order({"a": 5, "b": 3}, {}, 1, sequential=True)
    for epoch in (0, 1):
        pairs, epochs = stream.draws(epoch * 8, (epoch + 1) * 8)
        assert sorted(pairs[:5].tolist()) == list(range(5))
        assert sorted(pairs[5:].tolist()) == [5, 6, 7]
        assert set(epochs.tolist()) == {epoch}


@given(st.lists(st.integers(4, 60), min_size=2, max_size=4), st.integers(0, 5), st.sampled_from([0.0, 1.0]))
@settings(derandomize=True, deadline=None, max_examples=40)
def test_a_batch_is_of_one_source_and_sources_take_turns_by_their_weights(
    sizes: list[int], seed: int, first: float
) -> None:
    sources = {f"s{number}": size for number, size in enumerate(sizes)}
    weights = {name: first + number for number, name in enumerate(sources)} if first else {}
    shares = weights or {name: float(size) for name, size in sources.items()}
    sampler = OneSource(Order(sources, weights, seed), 4)
    cycle = max(sum(sizes) // 4, -(-int(sum(shares.values())) // int(min(shares.values()))))
    turns, seen, of_rounds = Counter[str](), {name: Counter[int]() for name in sources}, Counter[tuple[int, int]]()
    for number in range(2 * cycle):
        pairs, rounds = sampler.batch(number)
        (name,) = sources_of(pairs, sources)
        turns[name] += 1
        seen[name].update(pairs.tolist())
        of_rounds.update(zip(pairs.tolist(), rounds.tolist(), strict=True))
    assert turns.keys() == sources.keys()
    for name, count in turns.items():
        assert abs(count / 2 - cycle * shares[name] / sum(shares.values())) < 1
    for name, counts in seen.items():  # all pairs of a source have been there as often, or once more
        assert max(counts.values()) - min(counts.values()) <= 1
        assert len(counts) == min(sources[name], counts.total())
    assert set(of_rounds.values()) == {1}  # a pair is there once in each round


def plain_batch(sizes: list[int], number: int, size: int, seed: int) -> tuple[list[int], list[int]]:
    """Pairs and rounds of a batch of one source, in proportion to the sizes, a pair at a time."""
    cycle = max(sum(sizes) // size, -(-sum(sizes) // min(sizes)))
    exact = [Fraction(cycle * of, sum(sizes)) for of in sizes]
    turns = [int(share) for share in exact]
    while sum(turns) < cycle:  # the largest remainder first, of equal ones the first source
        source = max(range(len(sizes)), key=lambda source: (exact[source] - turns[source], -source))
        turns[source] += 1
    slot = plain_permuted(number % cycle, cycle, plain_keyed(seed, order._BATCHES, number // cycle))
    source = 0
    while slot >= turns[source]:
        slot -= turns[source]
        source += 1
    found, rounds = [], []
    for place in range(size):
        drawn = (number // cycle * turns[source] + slot) * size + place
        key = plain_keyed(seed, order._PAIRS, source, drawn // sizes[source])
        found.append(sum(sizes[:source]) + plain_permuted(drawn % sizes[source], sizes[source], key))
        rounds.append(drawn // sizes[source])
    return found, rounds


@given(st.lists(st.integers(5, 40), min_size=2, max_size=4), st.integers(0, 2**40))
@settings(derandomize=True, deadline=None, max_examples=25)
def test_a_batch_of_one_source_is_that_of_a_plain_loop(sizes: list[int], seed: int) -> None:
    sampler = OneSource(Order({f"s{number}": size for number, size in enumerate(sizes)}, {}, seed), 5)
    for number in (0, 1, 2, 17, 400):
        pairs, rounds = sampler.batch(number)
        assert (pairs.tolist(), rounds.tolist()) == plain_batch(sizes, number, 5, seed)


def test_a_source_with_less_than_a_batch_is_refused() -> None:
    with pytest.raises(UsageError, match=r'sampling = "one_source": b has 7 pairs, fewer than .* = 8; give'):
        OneSource(Order({"a": 40, "b": 7}, {}, 3), 8)
    sampler = OneSource(Order({"a": 40, "b": 7}, {"a": 1, "b": 0}, 3), 8)
    assert all(sources_of(sampler.batch(number)[0], {"a": 40, "b": 7}) == {"a"} for number in range(20))


@given(
    sizes=st.lists(st.integers(1, 300), min_size=1, max_size=4),
    together=st.integers(2, 50),
    seed=st.integers(0, 2**62),
    is_sequential=st.booleans(),
)
@settings(derandomize=True, deadline=None, max_examples=60)
def test_pairs_that_come_together_are_neighbours_and_a_round_has_each_once(
    sizes: list[int], together: int, seed: int, *, is_sequential: bool
) -> None:
    sources, rounds, whole = {f"s{number}": size for number, size in enumerate(sizes)}, 3, sum(sizes)
    stream = Order(sources, {}, seed, sequential=is_sequential, together=together)
    pairs, epochs = stream.draws(0, rounds * whole)
    apart = 0
    for number in range(rounds):
        of_round = pairs[number * whole : (number + 1) * whole]
        assert sorted(of_round.tolist()) == list(range(whole))
        apart += int((np.diff(of_round) != 1).sum())
    # runs, in each of which a source's run or round may end, one that goes round, and what is left over
    assert apart <= rounds * (2 * (whole // together) + 3 * len(sizes) + 2)
    assert Counter(epochs.tolist()) == dict.fromkeys(range(rounds), whole)
    first = whole // 2
    again = Order(sources, {}, seed, sequential=is_sequential, together=together)
    assert again.draws(first, first + whole)[0].tolist() == pairs[first : first + whole].tolist()


def test_runs_of_neighbours_are_of_other_pairs_in_each_round() -> None:
    pairs, _ = Order({"a": 1000}, {}, 5, together=10).draws(0, 20_000)
    assert (np.diff(pairs.reshape(-1, 10)) % 1000 == 1).all()
    assert len({int(pair) % 10 for pair in pairs[::10]}) > 5
    assert len({tuple(pairs[1000 * number : 1000 * number + 10].tolist()) for number in range(20)}) == 20


# Weights of pairs -----------------------------------------------------------------------------------------------------


class Sums(Weights):
    """Running sums of the weights that the path consists of."""

    @property
    def sums(self) -> npt.NDArray[np.float64]:
        return np.cumsum(np.array(self.path.split(), np.float64))


def of_weights(weights: Sequence[float]) -> Sums:
    return Sums(" ".join(map(str, weights)))


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=30), st.lists(st.integers(1, 9), max_size=9), st.integers(0, 5)
)
@settings(derandomize=True, deadline=None, max_examples=40)
def test_a_round_has_a_pair_as_often_as_its_part_of_the_weights_rounded_up_or_down(
    first: list[int], second: list[int], seed: int
) -> None:
    weights = {"a": first, "b": second}
    given_weights = {name: of_weights(of) for name, of in weights.items() if of}
    stream = Order({"a": len(first), "b": len(second)}, {}, seed, pair_weights=given_weights)
    draws = 5 * (len(first) + len(second))
    pairs, rounds = stream.draws(0, draws)
    of_a = (pairs < len(first)).sum()
    assert abs(of_a - draws * sum(first) / sum(first + second)) <= 5  # of an epoch: rounded to a whole number
    for begin, of in ((0, first), (len(first), second)):
        mine = (pairs >= begin) & (pairs < begin + len(of))
        for number in range(int(rounds[mine].max(initial=0))):  # but the last, which may have begun
            times = np.bincount(pairs[mine & (rounds == number)] - begin, minlength=len(of))
            exact = len(of) * np.array(of) / sum(of)
            assert ((times == np.floor(exact)) | (times == np.ceil(exact))).all()
    again = Order({"a": len(first), "b": len(second)}, {}, seed, pair_weights=given_weights)
    assert again.draws(7, draws)[0].tolist() == pairs[7:].tolist()


def test_equal_weights_draw_every_pair_once_and_a_mean_is_exact() -> None:
    stream = Order({"a": 100}, {}, 4, pair_weights={"a": of_weights([0.3] * 100)})
    assert sorted(stream.draws(300, 400)[0].tolist()) == list(range(100))
    heavy = Order({"a": 3}, {}, 4, pair_weights={"a": of_weights([0.25, 0.5, 1.75])})
    times = np.bincount(heavy.draws(0, 3 * 4000)[0]) / 4000  # 0.3, 0.6 and 2.1 of a round of three
    assert times == pytest.approx([0.3, 0.6, 2.1], abs=0.05)
    spares = np.bincount([heavy.spare(0, position, 0) for position in range(4000)], minlength=3) / 4000
    assert spares == pytest.approx([0.1, 0.2, 0.7], abs=0.05)
