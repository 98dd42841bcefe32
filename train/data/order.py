"""The order of training: an endless stream of draws, each a pure function of the seed and of sizes and weights.

No order is ever in memory: permutations are keyed bijections, computed where they are needed. An epoch is as many draws
as the drawn sources have pairs. Each source gets its quota of these, the same in every epoch, in slots that are
permuted anew for each epoch, and fills them from permutations of its own pairs, one after the other. So with weights in
proportion to size an epoch has every pair once; with any, a source has had each of its pairs n or n + 1 times.

Where pairs have weights, the draws of a source's round are points at even distances on the sum of its weights, from a
start that is drawn anew for each round: a pair has its part of the draws, rounded up or down, and exactly on average.

Where pairs that follow one another come `together`, a round permutes such runs, not pairs. Where runs begin is drawn
anew for each round. Neighbours in curated shards, which are in the order of hashes of images, have nothing in common.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from altalign.errors import UsageError
from altalign.train.data.index import Weights
from altalign.train.data.random_bits import ALL_BITS, GOLDEN, Numbers, Words, keyed, mix
from altalign.train.data.samples import Samples
from altalign.train.settings.training import TrainConfig

# of the Feistel network; 4 are the least that hide its halves (Luby and Rackoff), and small domains want more
_ROUNDS = 8
_SLOTS, _PAIRS, _SPARES, _BATCHES, _STARTS, _RUNS = 1, 2, 3, 4, 10, 11  # what a random number is for; others: others


def permuted(places: Words, sizes: Words, keys: Words) -> Words:
    """Where keyed permutations of [0, size) send places below that size: uint64[n] of three uint64[n].

    A Feistel network over the fewest bits that hold the size, walked on (cycle walking) until it is below it.
    """
    different, which = np.unique(sizes, return_inverse=True)
    bits = np.array([(int(size) - 1).bit_length() for size in different], np.uint64)[which]
    result, left = places.copy(), np.arange(len(places))
    while len(left):
        walked = _feistel(result[left], bits[left], keys[left])
        result[left] = walked
        left = left[walked >= sizes[left]]
    return result


def _feistel(values: Words, bits: Words, keys: Words) -> Words:
    """A bijection of numbers of so many bits, each with its own key."""
    low_bits = bits // np.uint64(2)
    low_mask = (np.uint64(1) << low_bits) - np.uint64(1)
    high_mask = (np.uint64(1) << (bits - low_bits)) - np.uint64(1)
    low, high = values & low_mask, values >> low_bits

    def scrambled(half: Words, number: int) -> Words:
        return mix(mix(half + keys) ^ np.uint64(GOLDEN * number & ALL_BITS)) >> np.uint64(16)

    for number in range(1, _ROUNDS, 2):
        low = low ^ (scrambled(high, number) & low_mask)
        high = high ^ (scrambled(low, number + 1) & high_mask)
    return high << low_bits | low


def _permuted_runs(places: Numbers, sizes: Numbers, keys: Words, together: int) -> Numbers:
    """As `permuted`, of runs of so many places, each in its order: int64[n]. Those after the last whole run stay."""
    run, runs = places // together, sizes // together
    moves = run < runs
    run[moves] = permuted(run[moves].astype(np.uint64), runs[moves].astype(np.uint64), keys[moves]).astype(np.int64)
    return run * together + places % together


def quotas(weights: Sequence[float | Fraction], draws: int) -> list[int]:
    """How many of `draws` each source gets by weight, rounded by the largest remainder, of equal ones the first."""
    exact = [Fraction(weight) for weight in weights]
    shares = [draws * weight / sum(exact) for weight in exact]
    whole = [int(share) for share in shares]
    for source in sorted(range(len(whole)), key=lambda source: whole[source] - shares[source])[: draws - sum(whole)]:
        whole[source] += 1
    return whole


def _turns(counts: Numbers, key: tuple[int, int] | None, positions: Numbers, together: int) -> tuple[Numbers, Numbers]:
    """Of an endless stream of sources that take turns, each with its quota in every cycle: source and its turns before.

    Turns, or runs of so many together, are permuted anew in each cycle by a key; without one, source follows source.
    """
    ends = np.cumsum(counts)
    length = int(ends[-1])
    cycles, slots = positions // length, positions % length
    if key is not None:
        sizes = np.full(len(positions), length, np.int64)
        slots = _permuted_runs(slots, sizes, keyed(*key, cycles), together)
    source = np.searchsorted(ends, slots, side="right")
    return source, slots - (ends - counts)[source] + cycles * counts[source]


class Order:
    """The endless stream of draws, of pairs that are numbered source by source.

    `weights` are shares of an epoch's draws by the names of sources (empty: by size), `pair_weights` those of the pairs
    of each source (empty: all alike). A sequential epoch goes through source after source (ZeroVL, appendix A.4).
    `together` pairs of a source come one after the other. `epoch_draws` are the pairs of all sources that are drawn.

    Raises UsageError: no pairs; weights for other sources; or one so small that an epoch has no draw for it.
    """

    def __init__(
        self,
        sources: Mapping[str, int],
        weights: Mapping[str, float],
        seed: int,
        *,
        sequential: bool = False,
        pair_weights: Mapping[str, Weights] | None = None,
        together: int = 1,
    ):
        if weights and (wrong := sources.keys() ^ weights.keys()):
            name = next(name for name in {**weights, **sources} if name in wrong)
            what = f"no weight for {name}" if name in sources else f"{name}: no such source in the runs"
            names = ", ".join(sources)
            raise UsageError(f"[data] source_weights: {what}; there are {names}: give each one, 0 to leave it out")
        if empty := [name for name, size in sources.items() if weights.get(name) and not size]:
            raise UsageError(f"[data] source_weights: {', '.join(empty)} has no pairs; give it 0")
        self.seed, self.sources, self._together = seed, sources, together
        self._key, self._pair_weights = None if sequential else (seed, _SLOTS), pair_weights or {}
        sums = {name: of_pairs.total for name, of_pairs in self._pair_weights.items()}
        by_name = weights or {**sources, **sums}
        self.weights = [by_name[name] for name in sources]
        self.epoch_draws = sum(size for name, size in sources.items() if by_name[name])
        if not self.epoch_draws:
            raise UsageError(
                "no pair to train on; give other [data] runs, a smaller held_out, another where, or weights above 0 to "
                "sources with pairs"
            )
        self._quotas = np.array(quotas(self.weights, self.epoch_draws), np.int64)
        for name, count in zip(sources, self._quotas, strict=True):
            if weights.get(name) and not count:
                raise UsageError(
                    f"[data] source_weights: {name} = {weights[name]} gives it none of an epoch's "
                    f"{self.epoch_draws:,} draws; give more, or 0"
                )
        self._sizes = np.array(list(sources.values()), np.int64)
        self._ends = np.cumsum(self._sizes)

    def draws(self, first: int, after: int) -> tuple[Numbers, Numbers]:
        """The draws at positions first … after - 1: numbers of pairs, and the rounds of their sources before."""
        positions = np.arange(first, after, dtype=np.int64)
        return self.draws_of(*_turns(self._quotas, self._key, positions, self._together))

    def draws_of(self, source: Numbers, in_source: Numbers) -> tuple[Numbers, Numbers]:
        """As `draws`, of the draws of some sources, counted source by source: int64[n] both."""
        sizes = self._sizes[source]
        rounds, places = in_source // sizes, in_source % sizes
        places = _permuted_runs(places, sizes, keyed(self.seed, _PAIRS, source, rounds), self._together)
        if self._together > 1:  # runs go round from where the first begins
            start = keyed(self.seed, _RUNS, source, rounds) % sizes.astype(np.uint64)
            places = (start.astype(np.int64) + places) % sizes
        return (self._ends - self._sizes)[source] + self._weighed(source, rounds, places), rounds

    def _weighed(self, source: Numbers, rounds: Numbers, places: Numbers) -> Numbers:
        """The pairs of sources at places of rounds, numbered inside their source: int64[n] of three int64[n]."""
        if not self._pair_weights:
            return places
        starts = (keyed(self.seed, _STARTS, source, rounds) >> np.uint64(11)) / 2.0**53  # [0, 1)
        points, pairs = (places + starts) / self._sizes[source], places.copy()
        for number, name in enumerate(self.sources):
            of_source = source == number
            if of_source.any():
                pairs[of_source] = self._pair_weights[name].at(points[of_source])
        return pairs

    def spare(self, pair: int, position: int, attempt: int) -> int:
        """The pair of the same source that stands for one that cannot be decoded at a position of the stream."""
        source = int(np.searchsorted(self._ends, pair, side="right"))
        size = int(self._sizes[source])
        place = int(keyed(self.seed, _SPARES, position, attempt)[0]) % size
        draw = (np.array([number], np.int64) for number in (source, position, place))
        return int(self._ends[source]) - size + int(self._weighed(*draw)[0])


class Sampler:
    """Global batches in the order of the stream: batch n is its draws n * size … (n + 1) * size - 1, of any epochs."""

    def __init__(self, order: Order, size: int):
        self.order, self.size = order, size

    def batch(self, number: int) -> tuple[Numbers, Numbers]:
        """A global batch: the numbers of its pairs, and their epochs."""
        return self.order.draws(number * self.size, (number + 1) * self.size)


class OneSource(Sampler):
    """Global batches of one source each (ZeroVL, section 3.1, debiased sampling).

    Sources take turns in proportion to their weights: in every cycle of batches each has the same number, in a random
    order. A source's batches go through its pairs as `Order` has them, and may span two rounds.

    Raises UsageError: there is one source alone, or one has fewer pairs than a batch.
    """

    def __init__(self, order: Order, size: int):
        super().__init__(order, size)
        what = '[data] sampling = "one_source"'
        if len(order.sources) == 1:
            names = ", ".join(order.sources)
            raise UsageError(f'{what}, and {names} is all there is; give more sources, or "random"')
        for (name, pairs), weight in zip(order.sources.items(), order.weights, strict=True):
            if weight and pairs < size:
                raise UsageError(
                    f"{what}: {name} has {pairs:,} pairs, fewer than [loop] global_batch = {size:,}; give a smaller "
                    "batch, or the source the weight 0 in source_weights"
                )
        shares = [Fraction(weight) for weight in order.weights]
        least = sum(shares) / min(share for share in shares if share)
        cycle = max(order.epoch_draws // size, math.ceil(least))  # every source has a batch of it
        self._quotas = np.array(quotas(shares, cycle), np.int64)

    def batch(self, number: int) -> tuple[Numbers, Numbers]:
        """As `Sampler.batch`."""
        source, turn = _turns(self._quotas, (self.order.seed, _BATCHES), np.array([number], np.int64), 1)
        return self.order.draws_of(source.repeat(self.size), turn * self.size + np.arange(self.size, dtype=np.int64))


class Waiting(NamedTuple):
    """What `DistinctImages` knows before a batch: the next draw of the stream, and the waiting pairs, oldest first."""

    position: int
    pairs: list[int]
    epochs: list[int]


class DistinctImages(Sampler):
    """Global batches that have an image once: a pair of an image that is in the batch already waits for the next batch.

    Pairs that wait come first, oldest first, then the stream goes on. What a batch has depends on all before it, so
    that one out of turn is found by going through them from the start, or from a state that a checkpoint kept.
    `images_of` gives the identity of each pair's image: uint64[n] of int64[n].
    """

    _KEPT = 256  # states at hand: whoever reads ahead asks for that of an earlier batch

    def __init__(self, order: Order, size: int, images_of: Callable[[Numbers], Words]):
        super().__init__(order, size)
        self._images_of = images_of
        self.resume(0)

    def state(self, number: int) -> Waiting:
        """What was known before a batch: for a checkpoint."""
        if number not in self._states:
            if number < min(self._states):
                self.resume(0)
            for before in range(max(known for known in self._states if known <= number), number):
                self.batch(before)
        return self._states[number]

    def resume(self, number: int, state: Waiting | None = None) -> None:
        """Go on from a batch with the state that a checkpoint kept, or as if nothing had come before."""
        self._states = {number: state or Waiting(number * self.size, [], [])}

    def batch(self, number: int) -> tuple[Numbers, Numbers]:
        """As `Sampler.batch`.

        Raises UsageError: there are fewer images than a batch has pairs, or ever more pairs would wait.
        """
        before, two_epochs = self.state(number), 2 * self.order.epoch_draws
        position, pairs, epochs = before.position, np.array(before.pairs, np.int64), np.array(before.epochs, np.int64)
        what, advice = '[data] sampling = "distinct_images"', 'lower [loop] global_batch, or give "random"'
        while True:
            firsts = np.sort(np.unique(self._images_of(pairs), return_index=True)[1])  # pairs with a new image
            if len(firsts) >= self.size:
                break
            if position - before.position > two_epochs + self.size:
                raise UsageError(
                    f"{what}: {len(firsts):,} images were found for a global batch of {self.size:,} pairs; {advice}"
                )
            more = self.order.draws(position, position + max(self.size - len(firsts), 64))
            pairs, epochs = np.concatenate([pairs, more[0]]), np.concatenate([epochs, more[1]])
            position += len(more[0])
        taken = firsts[: self.size]
        seen = max(int(taken[-1]) + 1, len(before.pairs))  # those that waited and were not reached go on waiting
        waiting = np.delete(np.arange(seen), taken)
        if len(waiting) > two_epochs:
            raise UsageError(
                f"{what}: {len(waiting):,} pairs wait, more than two epochs have: some images have more pairs than an "
                f"epoch has batches; {advice}"
            )
        if len(self._states) > self._KEPT:
            self._states.pop(min(self._states))
        after = position - (len(pairs) - seen), pairs[waiting].tolist(), epochs[waiting].tolist()
        self._states[number + 1] = Waiting(*after)
        return pairs[taken], epochs[taken]


def global_batches(config: TrainConfig, samples: Samples) -> Sampler:
    """The global batches of a training, of these pairs. Raises UsageError: the settings do not fit them."""
    data, size = config.data, config.loop.global_batch
    order = Order(
        samples.draws,
        data.source_weights,
        config.run.seed,
        sequential=data.sampling == "sequential",
        pair_weights=samples.weights,
        together=data.read_together,
    )
    if size > order.epoch_draws:
        raise UsageError(
            f"[loop] global_batch = {size:,}, and {order.epoch_draws:,} pairs to train on: one would be its own "
            "negative; give fewer"
        )
    if data.sampling == "distinct_images":
        return DistinctImages(order, size, lambda draws: samples.images_of(samples.firsts(draws)))
    return OneSource(order, size) if data.sampling == "one_source" else Sampler(order, size)
