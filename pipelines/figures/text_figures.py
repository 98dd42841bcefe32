"""What the audit counts and samples of texts: histograms, scripts, frequent strings, and rows of the smallest keys."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from altalign import storage
from altalign.data.audit_tables import EDGE_NGRAMS, EXACT_BELOW, FREQUENT, MEASURED, SCRIPTS, WORDS_AT_MOST
from altalign.data.reasons import KEPT, Verdict
from altalign.dedup.hash_tables import log2_counts
from altalign.filters import bounds, image, one_caption, text, words
from altalign.filters.languages import main_scripts
from altalign.pipelines.run import outputs
from altalign.pipelines.run.text_tables import WANTED_HASHES
from altalign.pipelines.run.units import Run
from altalign.rules.rule import by_measure
from altalign.storage import parquet

# Each measure, and the rules that compare it with a threshold.
OF_TEXT, OF_IMAGE = by_measure(text.RULES), by_measure(image.RULES)

_VALUES = 2_048  # of a measure: from 0, and the last stands for none
UNKNOWN = _VALUES - 1
_AT_ONCE = 1 << 20  # rows of tables that are added up at a time

Numbers = npt.NDArray[np.integer]  # integers[n]
Values = Mapping[str, Numbers]  # of n candidates, by measure


class Histograms:
    """Counts candidates by the values of these measures (`OF_TEXT`, `OF_IMAGE`)."""

    def __init__(self, measures: Mapping[str, set[str]]):
        self._rules = measures
        self._rows = {name: np.zeros((2, _VALUES), np.int64) for name in measures}  # by whether it fails otherwise

    def add(self, values: Values, failed: Sequence[Sequence[str]], failed_of: Numbers) -> None:
        """Add n candidates: what was measured of each, lists of reasons, and which list each has (integers[n])."""
        for name, rules in self._rules.items():
            fails_otherwise = np.array([not rules.issuperset(reasons) for reasons in failed], np.int64)
            places = values[name].astype(np.int64) + _VALUES * fails_otherwise[failed_of]
            self._rows[name] += np.bincount(places, minlength=2 * _VALUES).reshape(2, _VALUES)

    def to_arrow(self) -> pa.Table:
        """The counts as rows of `MEASURED`."""
        tables = [MEASURED.empty_table()]
        for name, rows in self._rows.items():
            fails_otherwise, value = np.nonzero(rows)
            columns = {
                "measure": pa.repeat(pa.scalar(name), len(value)),
                "value": pa.array(value.astype(np.int32), mask=value == UNKNOWN),
                "fails_otherwise": pa.array(fails_otherwise.astype(bool)),
                "rows": rows[fails_otherwise, value],
            }
            tables.append(pa.table(columns, schema=MEASURED))
        return pa.concat_tables(tables)


def values_of(
    words: pa.Int32Array, rarest: npt.NDArray[np.uint8], images_per_text: pa.Int64Array, texts_per_image: pa.Int64Array
) -> Values:
    """The values of n candidates, from what the text rules measure."""
    return {
        "words": np.minimum(words.to_numpy(), WORDS_AT_MOST),
        "rarest_log2": rarest,
        "images_per_text": _bounded(images_per_text),
        "texts_per_image": _bounded(texts_per_image),
    }


def sum_of(parts: Iterable[pa.Table], schema: pa.Schema) -> pa.Table:
    """The sum of tables whose last column counts, sorted by all others; about a million rows are in memory at once."""
    *names, counted = schema.names

    def summed(tables: list[pa.Table]) -> pa.Table:
        total = pa.concat_tables(tables).group_by(names, use_threads=False).aggregate([(counted, "sum")])
        total = total.rename_columns(schema.names)
        return total.sort_by([(name, "ascending") for name in names]).cast(schema)

    waiting = [schema.empty_table()]
    for part in parts:
        waiting.append(part.cast(schema))
        if sum(map(len, waiting[1:])) > max(_AT_ONCE, len(waiting[0])):
            waiting = [summed(waiting)]
    return summed(waiting)


def _bounded(counts: pa.Int64Array) -> Numbers:
    """Counts as `MEASURED` has them: null, within the limit, is 0; large ones are `EXACT_BELOW` + 8 log2, rounded."""
    bounded = counts.fill_null(0).to_numpy()
    large = np.flatnonzero(bounded >= EXACT_BELOW)
    if len(large):
        bounded = bounded.copy()
        bounded[large] = EXACT_BELOW + log2_counts(bounded[large]).astype(np.int64)
    return bounded


# Scripts of captions, of a sample chosen by key -------------------------------------------------------------------

CANDIDATES_AT_MOST = 65_536  # about, in the sample
SCRIPT_CHARACTERS = 1_000  # so many of a caption are looked at: each takes some 20 bytes of memory

Scripts = Counter[tuple[str, str]]  # candidates by script and verdict


def count_scripts(captions: pa.StringArray, verdicts: Verdict, keys: npt.NDArray[np.uint8], *, one_in: int) -> Scripts:
    """Count the candidates of the sample by script and verdict; keys: uint8[n, 16]."""
    first = keys[:, :8].copy().view(">u8")[:, 0]
    rows = np.flatnonzero(first <= np.uint64((1 << 64) // one_in - 1))
    of_rows: list[Any] = verdicts.take(rows).dictionary_decode().fill_null(KEPT).to_pylist()
    begun: Any = pc.utf8_slice_codeunits(captions.take(rows), 0, SCRIPT_CHARACTERS)
    scripts: Any = main_scripts(begun)
    return Counter(zip(scripts.to_pylist(), of_rows, strict=True))


def write_scripts(run: Run, total: Scripts, *, one_in: int) -> None:
    """Write `audit/scripts.parquet`, sorted by script and verdict."""
    rows = [
        {"script": script, "verdict": verdict, "rows": n, "sampled_one_in": one_in}
        for (script, verdict), n in sorted(total.items())
    ]
    outputs.write_audit(run, SCRIPTS, rows)


# Frequent strings: `tables` chooses their hashes, and `judge` finds the strings ------------------------------------

MOST = 50  # texts, and as many images
PER_SIDE = 24  # n-grams in the vocabulary, and as many outside it
CHARACTERS_AT_MOST = 1_000  # so many of each string are kept
STRINGS_SOUGHT = ("ngrams", "texts", "images")

Hashes = npt.NDArray[np.uint64]  # uint64[n]
Entries = npt.NDArray[np.uint64]  # (hash, count): uint64[n, 2]

_SIEVE_BITS = 16
_BELOW_SIEVE = np.uint64(64 - _SIEVE_BITS)


class Top:
    """The entries with the largest counts; where counts are equal, those with the smallest hashes."""

    def __init__(self, most: int):
        self._most, self.entries = most, np.empty((0, 2), np.uint64)

    def add(self, entries: Entries) -> None:
        """Let entries compete; they are sorted by hash, and above those of earlier calls."""
        if len(entries) > self._most:
            counts = entries[:, 1]
            bound = np.partition(counts, len(counts) - self._most)[len(counts) - self._most]
            equal = np.flatnonzero(counts == bound)[: self._most]  # enough, whatever else there is
            entries = entries[np.sort(np.r_[np.flatnonzero(counts > bound), equal])]
        every = np.concatenate([self.entries, entries])
        self.entries = every[np.argsort(~every[:, 1], kind="stable")][: self._most]  # ~: unsigned, largest first


class Edges:
    """The n-grams at the vocabulary's edge: the rarest in it and the most frequent outside it."""

    def __init__(self, threshold: int):
        self._threshold, self._inside, self._outside = np.uint64(threshold), Top(PER_SIDE), Top(PER_SIDE)

    def add(self, entries: Entries) -> None:
        """As `Top.add`."""
        is_in = entries[:, 1] >= self._threshold
        inside = entries[is_in]
        inside[:, 1] = ~inside[:, 1]
        self._inside.add(inside)
        self._outside.add(entries[~is_in])

    def to_json(self) -> list[list[int]]:
        """Hash, count and whether the vocabulary has it, as 0 or 1."""
        return [
            *([hash_, int(~np.uint64(count)), 1] for hash_, count in self._inside.entries.tolist()),
            *([hash_, count, 0] for hash_, count in self._outside.entries.tolist()),
        ]


class SoughtHashes(NamedTuple):
    """The hashes that are looked for, each array sorted; and the smallest count among the texts and the images."""

    ngrams: Hashes
    sieve: npt.NDArray[np.bool_]  # bool[65536]: whether one of the n-grams begins with these 16 bits
    texts: Hashes
    texts_at_least: int
    images: Hashes
    images_at_least: int


def sought_hashes(run: Run) -> SoughtHashes:
    """The hashes that a run looks for; loaded once a process."""
    path = WANTED_HASHES.path(run)
    return _sought(storage.absolute(path), storage.stamp(path))


@lru_cache(maxsize=1)
def _sought(path: str, _changed: storage.Stamp) -> SoughtHashes:
    entries = storage.read_json(path)
    ngrams, texts, images = (np.sort(np.array([e[0] for e in entries[kind]], np.uint64)) for kind in STRINGS_SOUGHT)
    at_least = (min((entry[1] for entry in entries[kind]), default=2**62) for kind in ("texts", "images"))
    return SoughtHashes(ngrams, sieve_of(ngrams), texts, next(at_least), images, next(at_least))


def sieve_of(ngrams: Hashes) -> npt.NDArray[np.bool_]:
    """The sieve of these n-grams: bool[65536]."""
    sieve = np.zeros(1 << _SIEVE_BITS, np.bool_)
    sieve[ngrams >> _BELOW_SIEVE] = True
    return sieve


class Seen:
    """The strings of the sought hashes in a unit: the first of each."""

    def __init__(self, sought: SoughtHashes):
        self._sought = sought
        self._strings: dict[str, dict[int, str]] = {kind: {} for kind in STRINGS_SOUGHT}

    def captions(self, captions: pa.StringArray, scan: words.Scan, images_per_text: npt.NDArray[np.int64]) -> None:
        """Look at n captions, with their n-grams and hashes; `images_per_text` is 0 within the limit, int64[n]."""
        sought, strings = self._sought, self._strings["ngrams"]
        if len(strings) < len(sought.ngrams):
            places = np.flatnonzero(sought.sieve[scan.ngrams >> _BELOW_SIEVE])
            places = places[np.isin(scan.ngrams[places], sought.ngrams)]
            for row in np.unique(np.searchsorted(scan.ends, places, side="right")).tolist():
                ngrams = one_caption.ngrams_of(captions[row].as_py())
                of_row = scan.ngrams[scan.ends[row] - len(ngrams) : scan.ends[row]]
                for number in np.flatnonzero(np.isin(of_row, sought.ngrams)).tolist():
                    strings.setdefault(int(of_row[number]), ngrams[number][:CHARACTERS_AT_MOST])
        self._look("texts", images_per_text >= sought.texts_at_least, scan.texts, sought.texts, captions)

    def images(self, urls: pa.StringArray, hashes: Hashes, texts_per_image: npt.NDArray[np.int64]) -> None:
        """Look at n images, with their hashes; `texts_per_image` is 0 within the limit, int64[n]."""
        self._look("images", texts_per_image >= self._sought.images_at_least, hashes, self._sought.images, urls)

    def _look(
        self, kind: str, candidates: npt.NDArray[np.bool_], hashes: Hashes, sought: Hashes, values: pa.StringArray
    ) -> None:
        strings, rows = self._strings[kind], np.flatnonzero(candidates)
        if not len(rows) or len(strings) == len(sought):
            return
        first, at = np.unique(hashes[rows], return_index=True)
        for number in np.flatnonzero(np.isin(first, sought)).tolist():
            if int(first[number]) not in strings and (value := values[int(rows[at[number]])].as_py()) is not None:
                strings[int(first[number])] = value[:CHARACTERS_AT_MOST]

    def to_json(self) -> dict[str, list[list[object]]]:
        """The hashes and strings of each kind, for a unit's file."""
        return {kind: [[*entry] for entry in sorted(strings.items())] for kind, strings in self._strings.items()}


def write_strings(run: Run, strings: Mapping[str, Mapping[int, str]]) -> None:
    """Write `audit/frequent.parquet` and `audit/edge_ngrams.parquet`: strings of each kind by their hashes."""
    sought = storage.read_json(WANTED_HASHES.path(run))
    frequent = [
        {"kind": kind.removesuffix("s"), "value": strings[kind][hash_], "count": count}
        for kind in ("texts", "images")
        for hash_, count in sought[kind]
        if hash_ in strings[kind]  # an image in hand may have no URL
    ]
    edges = [
        {"ngram": strings["ngrams"][hash_], "count": count, "is_in": bool(is_in)}
        | {"rarest_log2": int(log2_counts(np.array([count], np.int64))[0])}
        for hash_, count, is_in in sought["ngrams"]
        if hash_ in strings["ngrams"]
    ]
    outputs.write_audit(run, FREQUENT, frequent)
    outputs.write_audit(run, EDGE_NGRAMS, edges)


# Rows chosen by key ----------------------------------------------------------------------------------------------

PER_REASON = 24
CAPTION_BYTES = 1 << 10  # so much of a caption is shown


def one_in(population: int, at_most: int) -> int:
    """The smallest power of two so that a sample of one in so many has at most `at_most` members, on average."""
    return 1 << max(0, (population - 1) // at_most).bit_length()


class Smallest:
    """Chooses, batch after batch, the rows that may be in a sample: for each reason the smallest keys so far."""

    def __init__(self, reasons: int):
        self._smallest = [np.zeros(0, np.uint64)] * reasons  # the first 8 bytes of the smallest keys of each reason
        self._bounds = np.full(reasons, 2**64 - 1, np.uint64)  # the largest of these, once there are PER_REASON

    def choose(self, reasons: npt.NDArray[np.uint8], keys: npt.NDArray[np.uint8]) -> Numbers:
        """The numbers of the chosen rows among n; `reasons` are numbers, uint8[n], and `keys` uint8[n, 16]."""
        first = keys.view(">u8")[:, 0]
        rows = np.flatnonzero(first <= self._bounds[reasons])
        chosen = [np.zeros(0, np.int64)]
        for reason in np.unique(reasons[rows]).tolist():
            of_reason = rows[reasons[rows] == reason]
            firsts = first[of_reason].astype(np.uint64)
            smallest = self._smallest[reason] = np.unique(np.r_[self._smallest[reason], firsts])[:PER_REASON]
            chosen.append(of_reason[firsts <= smallest[-1]])
            if len(smallest) == PER_REASON:
                self._bounds[reason] = smallest[-1]
        return np.sort(np.concatenate(chosen))


def smallest_keys(rows: pa.Table, most: int) -> pa.Table:
    """For each reason up to `most` rows with the smallest keys, sorted by reason, key and page."""
    ordered = rows.sort_by([(name, "ascending") for name in ("reason", "key", "page_url", "image_url", "source_key")])
    starts = np.flatnonzero(is_new(ordered, "reason"))
    rank = np.arange(len(ordered)) - np.repeat(starts, np.diff(np.r_[starts, len(ordered)]))
    return ordered.filter(pa.array(rank < most))


def shortened(rows: pa.Table) -> pa.Table:
    """The same rows with no more of a caption than is shown."""
    captions = bounds.cut(parquet.strings(rows, "caption"), bytes_at_most=CAPTION_BYTES)
    return rows.set_column(rows.column_names.index("caption"), "caption", captions)


def smallest_pairs(rows: pa.Table) -> pa.Table:
    """For each reason the PER_REASON pairs with the smallest keys, sorted by reason and key.

    A key that has several rows is represented by the row of the first page.
    """
    ordered = smallest_keys(rows, len(rows))
    return smallest_keys(ordered.filter(pa.array(is_new(ordered, "reason") | is_new(ordered, "key"))), PER_REASON)


def is_new(ordered: pa.Table, name: str) -> npt.NDArray[np.bool_]:
    """Whether each row's value in a column differs from that of the row before it, bool[n]."""
    values = ordered[name].combine_chunks().dictionary_encode()
    numbers = values.indices.to_numpy()
    return np.r_[True, numbers[1:] != numbers[:-1]][: len(numbers)]
