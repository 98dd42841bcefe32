"""Labels of captions by a model of fastText: the two likeliest of each, as fastText's own `predict` finds them.

Kernels release Python's lock. `predict_one` is their slow twin.
"""

import math
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numba import njit

from altalign.filters.fasttext_files import FastText
from altalign.filters.words import text_buffers

_FNV, _PRIME = np.uint32(2166136261), np.uint32(16777619)
_WORD_STEP = np.uint64(116049371)
_EPSILON = 1e-5  # fastText takes the logarithm of p + _EPSILON
_LEVELS_ADD_AT_MOST = 1e-5 * 10_000  # to the logarithm of a probability, by that, below a node of any tree
_LOSS = {"hs": 0, "softmax": 1, "ova": 2}
_LABEL, _END = np.frombuffer(b"__label__", np.uint8), np.frombuffer(b"</s>", np.uint8)
_LESS, _MORE = np.uint8(ord("<")), np.uint8(ord(">"))

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]


class Likeliest(NamedTuple):
    """For n captions the likeliest label by its number, and the probabilities of the first and the second."""

    label: npt.NDArray[np.int32]
    first: npt.NDArray[np.float32]
    second: npt.NDArray[np.float32]


class Predictor:
    """A model, ready for columns; threads share it."""

    def __init__(self, model: FastText) -> None:
        self.model = model
        words = len(model.word_offsets) - 1
        size = 1 << max(4, (2 * words).bit_length())
        self._slots = np.full(size, -1, np.int32)
        _fill(self._slots, model.words, model.word_offsets)
        none = np.zeros(0, np.int64)
        self._pruned = none if model.pruned is None else model.pruned
        self._pruned_rows = none if model.pruned_rows is None else model.pruned_rows
        left, right = _tree(model.counts) if model.loss == "hs" else (none.astype(np.int32),) * 2
        self._left, self._right = left, right

    @cached_property
    def _numbers(self) -> npt.NDArray[np.int64]:
        model = self.model
        has_pruned = model.pruned is not None
        return np.array(
            [model.min_n, model.max_n, model.word_ngrams, model.bucket, _LOSS[model.loss], has_pruned, len(model.rows)],
            np.int64,
        )

    def predict(self, captions: pa.StringArray) -> Likeliest:
        """The likeliest labels of n captions without nulls."""
        data, offsets = text_buffers(captions)
        n = len(captions)
        found = Likeliest(np.zeros(n, np.int32), np.zeros(n, np.float32), np.zeros(n, np.float32))
        longest = int(np.diff(offsets).max(initial=0))
        _predict(
            *(data, offsets, self._numbers, self._slots, self.model.words, self.model.word_offsets),
            *(self._pruned, self._pruned_rows, self.model.rows, self.model.output, self._left, self._right),
            np.zeros(longest + 8, np.uint8),
            np.zeros(longest + 2, np.int32),
            np.zeros(1 + (longest + 8) * (1 + self.model.max_n + self.model.word_ngrams), np.int64),
            *found,
        )
        return found


def _tree(counts: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """The children of each node of the tree of hierarchical softmax; leaves, which come first, have -1."""
    labels = len(counts)
    weight = np.full(max(1, 2 * labels - 1), 10**15, np.int64)
    weight[:labels] = counts
    left, right = (np.full(len(weight), -1, np.int32) for _ in range(2))
    leaf, node = labels - 1, labels
    for parent in range(labels, 2 * labels - 1):
        smallest = [0, 0]
        for place in range(2):
            if leaf >= 0 and weight[leaf] < weight[node]:
                smallest[place] = leaf
                leaf -= 1
            else:
                smallest[place] = node
                node += 1
        left[parent], right[parent] = smallest
        weight[parent] = weight[smallest[0]] + weight[smallest[1]]
    return left, right


@njit(nogil=True)
def _hashed(h: np.uint32, byte: np.uint8) -> np.uint32:
    # FNV-1a; fastText widens bytes with their sign
    wide = np.uint32(byte) | (np.uint32(0xFFFFFF00) if byte >= 128 else np.uint32(0))
    return np.uint32((h ^ wide) * _PRIME)


@njit(nogil=True, cache=True)
def _fill(slots: Ints, words: Bytes, offsets: Longs) -> None:
    mask = np.uint32(len(slots) - 1)
    for number in range(len(offsets) - 1):
        h = _FNV
        for at in range(offsets[number], offsets[number + 1]):
            h = _hashed(h, words[at])
        place = h & mask
        while slots[place] >= 0:
            place = (place + np.uint32(1)) & mask
        slots[place] = number


@njit(nogil=True)
def _word(token: Bytes, begin: int, end: int, h: np.uint32, slots: Ints, words: Bytes, offsets: Longs) -> int:
    """The number of a word, -1 of one that the dictionary does not have."""
    mask = np.uint32(len(slots) - 1)
    place = h & mask
    while slots[place] >= 0:
        number = slots[place]
        first = offsets[number]
        if offsets[number + 1] - first == end - begin:
            same = True
            for at in range(end - begin):
                if words[first + at] != token[begin + at]:
                    same = False
                    break
            if same:
                return number
        place = (place + np.uint32(1)) & mask
    return -1


@njit(nogil=True)
def _note(bucket: np.int64, numbers: Longs, n_words: np.int64, pruned: Longs, pruned_rows: Longs, noted: Longs) -> None:
    """Notes the row of an n-gram's bucket: not that of one which was not kept, or has none. `noted[0]` counts."""
    row = n_words + bucket
    if numbers[5]:
        at = np.searchsorted(pruned, bucket)
        if at == len(pruned) or pruned[at] != bucket:
            return
        row = n_words + pruned_rows[at]
    if 0 <= row < numbers[6]:
        noted[0] += 1
        noted[noted[0]] = row


@njit(nogil=True)
def _mean(noted: Longs, rows: Floats, hidden: Floats) -> None:
    """The mean of the noted rows, added up in their order."""
    first = np.float32(0)
    for place in range(1, noted[0] + 1):  # a number of each, so that many are on their way from memory at once
        first += rows[noted[place], 0]
    hidden[0] = first
    hidden[:] = 0
    for place in range(1, noted[0] + 1):
        row = noted[place]
        for d in range(len(hidden)):
            hidden[d] += rows[row, d]
    for d in range(len(hidden)):
        hidden[d] /= np.float32(noted[0])


@njit(nogil=True)
def _subwords(
    token: Bytes,
    begin: int,
    end: int,
    numbers: Longs,
    n_words: np.int64,
    pruned: Longs,
    pruned_rows: Longs,
    noted: Longs,
) -> None:
    """Notes the character n-grams of `<token>`; the angle brackets stand at `begin - 1` and `end`."""
    shortest, longest, buckets, has_pruned = numbers[0], numbers[1], numbers[3], numbers[5]
    inverse, count = 1.0 / buckets, noted[0]
    for i in range(begin - 1, end + 1):
        if (token[i] & 0xC0) == 0x80:
            continue
        h, j, n = _FNV, i, 1
        while j < end + 1 and n <= longest:
            h = _hashed(h, token[j])
            j += 1
            while j < end + 1 and (token[j] & 0xC0) == 0x80:
                h = _hashed(h, token[j])
                j += 1
            if n >= shortest and not (n == 1 and (i == begin - 1 or j == end + 1)):
                # the remainder; a division of integers takes longer than all else here
                number = np.int64(h)
                bucket = number - np.int64(number * inverse) * buckets
                bucket += buckets if bucket < 0 else -buckets if bucket >= buckets else 0
                if has_pruned:
                    noted[0] = count
                    _note(bucket, numbers, n_words, pruned, pruned_rows, noted)
                    count = noted[0]
                elif n_words + bucket < numbers[6]:
                    count += 1
                    noted[count] = n_words + bucket
            n += 1
    noted[0] = count


@njit(nogil=True)
def _sigmoid(x: float) -> float:
    """As fastText has it: from a table of 512 steps between -8 and 8."""
    if x < -8 or x > 8:
        return 0.0 if x < 0 else 1.0
    return 1.0 / (1.0 + math.exp(8.0 - int((x + 8.0) * 32.0) / 32.0))


@njit(nogil=True)
def _probabilities(
    hidden: Floats,
    output: Floats,
    left: Ints,
    right: Ints,
    kind: int,
    stack: Longs,
    scores: Doubles,
    found: Doubles,
) -> tuple[int, float, float]:
    """Number and probability of the likeliest label, and the probability of the next."""
    labels = len(output)
    best, first, second = 0, -1.0, -1.0
    if kind == 0:
        top, stack[0], scores[0] = 1, 2 * labels - 2, 0.0
        best_score = next_score = -math.inf
        found[:] = -1.0
        while top:
            top -= 1
            node, score = stack[top], scores[top]
            if score < next_score - _LEVELS_ADD_AT_MOST:
                continue  # two labels are likelier than all below this node
            if node < labels:
                found[node] = math.exp(score)
                next_score = max(next_score, min(score, best_score))
                best_score = max(best_score, score)
                continue
            dot = np.float32(0)
            for d in range(len(hidden)):
                dot += output[node - labels, d] * hidden[d]
            f = 1.0 / (1.0 + math.exp(-np.float64(dot)))
            likelier = 1 if f > 0.5 else 0  # the likelier side lies on top, so that it is looked at first
            stack[top + 1 - likelier], scores[top + 1 - likelier] = left[node], score + math.log(1.0 - f + _EPSILON)
            stack[top + likelier], scores[top + likelier] = right[node], score + math.log(f + _EPSILON)
            top += 2
    else:
        largest = -math.inf
        for label in range(labels):
            dot = np.float32(0)
            for d in range(len(hidden)):
                dot += output[label, d] * hidden[d]
            found[label] = dot
            largest = max(largest, found[label])
        total = 0.0
        for label in range(labels):
            found[label] = math.exp(found[label] - largest) if kind == 1 else _sigmoid(found[label])
            total += found[label]
        for label in range(labels):
            found[label] = (found[label] / total if kind == 1 else found[label]) + _EPSILON
    for label in range(labels):
        if found[label] > first:
            best, second, first = label, first, found[label]
        elif found[label] > second:
            second = found[label]
    if first < 0:  # no probability is a number
        first = math.nan
    return best, first, second


@njit(nogil=True, cache=True)
def _predict(
    data: Bytes,
    offsets: Longs,
    numbers: Longs,
    slots: Ints,
    words: Bytes,
    word_offsets: Longs,
    pruned: Longs,
    pruned_rows: Longs,
    rows: Floats,
    output: Floats,
    left: Ints,
    right: Ints,
    token: Bytes,
    seen: Ints,
    noted: Longs,
    label: Ints,
    first: Floats,
    second: Floats,
) -> None:
    n_words, dim, labels = np.int64(len(word_offsets) - 1), rows.shape[1], len(output)
    hidden, stack = np.zeros(dim, np.float32), np.zeros(2 * labels + 2, np.int64)
    scores, found = np.zeros(2 * labels + 2), np.zeros(labels)
    for row in range(len(offsets) - 1):
        noted[0], n_seen, at, end = 0, 0, offsets[row], offsets[row + 1]
        while at <= end:
            size, at = _token(data, at, end, token)
            if size == 0:
                continue
            h = _FNV
            for i in range(1, 1 + size):
                h = _hashed(h, token[i])
            is_end = _begins(token, size, _END) and size == len(_END)  # </s> ends a line, wherever it stands
            at = end + 1 if is_end else at
            number = _word(token, 1, 1 + size, h, slots, words, word_offsets)
            if number < 0 and _begins(token, size, _LABEL):
                continue
            if 0 <= number < numbers[6]:
                noted[0] += 1
                noted[noted[0]] = number
            if numbers[1] > 0 and not is_end:
                _subwords(token, 1, 1 + size, numbers, n_words, pruned, pruned_rows, noted)
            seen[n_seen] = np.int32(h)
            n_seen += 1
        _word_ngrams(seen[:n_seen], numbers, n_words, pruned, pruned_rows, noted)
        if noted[0] == 0:
            label[row], first[row], second[row] = -1, 0.0, 0.0
            continue
        _mean(noted, rows, hidden)
        best, p, q = _probabilities(hidden, output, left, right, numbers[4], stack, scores, found)
        label[row], first[row], second[row] = best, p, q


@njit(nogil=True)
def _token(data: Bytes, at: int, end: int, token: Bytes) -> tuple[int, int]:
    """Copies the next token, between angle brackets, into `token`; the end of a line is `</s>`.

    Returns its size, 0 where two blanks follow each other, and where to go on.
    """
    size = 0
    if at == end:
        for byte in _END:
            token[1 + size] = byte
            size += 1
    while at < end and not (data[at] == 32 or (9 <= data[at] <= 13) or data[at] == 0):
        token[1 + size] = data[at]
        size += 1
        at += 1
        if at == end:
            at -= 1  # the end itself is still to come
            break
    token[0], token[1 + size] = _LESS, _MORE
    return size, at + 1


@njit(nogil=True)
def _begins(token: Bytes, size: int, with_: Bytes) -> bool:
    if size < len(with_):
        return False
    same = True
    for i in range(len(with_)):
        same = same and token[1 + i] == with_[i]
    return same


@njit(nogil=True)
def _word_ngrams(
    seen: Ints,
    numbers: Longs,
    n_words: np.int64,
    pruned: Longs,
    pruned_rows: Longs,
    noted: Longs,
) -> None:
    """Notes the n-grams of words, by the words' hashes."""
    for i in range(len(seen) if numbers[2] > 1 else 0):
        joined = np.uint64(np.int64(seen[i]))
        for j in range(i + 1, min(len(seen), i + numbers[2])):
            joined = joined * _WORD_STEP + np.uint64(np.int64(seen[j]))
            _note(np.int64(joined % np.uint64(numbers[3])), numbers, n_words, pruned, pruned_rows, noted)
