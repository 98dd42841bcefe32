"""`altalign select RUN OUT`: makes a run of the samples that a condition keeps, or lists name; or runs of shares.

Verdicts read values as they are stored, so the same samples stay wherever it runs.
"""

import functools
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from hashlib import blake2b
from itertools import islice
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from altalign import storage, terminal
from altalign.data import columns
from altalign.data.columns import Known
from altalign.data.reasons import DropReason, Verdict, drop_where
from altalign.data.schema import SAMPLE
from altalign.data.scores import Score
from altalign.errors import AltalignError, UsageError
from altalign.filters import where
from altalign.filters.reservations import NOTATIONS, Said, opposed, product_token, reason
from altalign.filters.where import Condition
from altalign.pipelines import curate
from altalign.pipelines.derive import balance
from altalign.pipelines.derive.balance import Balance
from altalign.pipelines.derive.make_run import Making, Mask, chosen, make
from altalign.pipelines.derive.parents import Parent, of_unit, plan_of
from altalign.pipelines.near import shard_images
from altalign.pipelines.run.shard_tables import (
    CHOSEN,
    CHOSEN_ROWS,
    CONCEPTS,
    VALUES,
    ChosenFacts,
    CountedFacts,
    ShardOfParent,
)
from altalign.pipelines.run.units import Run, content
from altalign.settings.curate import CurateConfig
from altalign.storage import arrays, parquet

Ordered = npt.NDArray[np.unsignedinteger[Any]]
Files = tuple[tuple[str, str], ...]  # paths, and SHA-256 of what is in them: a process keeps the keys of a list
UID = "uid"  # of DataComp's pools, where it is kept as a column
PREFERENCES = "preferences"  # the column of what rights holders say
NEAR = 0.975  # cosine of images that shares never part
BUCKETS = 1 << 16  # of a histogram
_BOUNDS = "select/bounds.json"  # in work/: what `_find_bounds` has found


class Top(NamedTuple):
    """The samples with the largest values of a column."""

    column: str
    share: Fraction


@dataclass(frozen=True)
class Selection:
    """What a selection keeps; with what a unit needs to know of the run, so it can be pickled."""

    where: str  # the condition as it was written; empty: none
    tops: tuple[Top, ...]  # shares of the samples that the condition keeps, each of one column
    nulls: Literal["drop", "keep", ""]  # whether samples stay whose value is missing; empty: the user did not decide
    balance: Balance | None  # lots among samples of frequent concepts, of those that the condition keeps
    parent: Parent
    scores: Mapping[str, Score] | None = None  # that are read, by column
    respect: str = ""  # a purpose: what its rights holder opposes goes; empty: none
    labels: tuple[str, ...] = ()  # columns that dropped rows have beside those that are named

    @property
    def conditions(self) -> list[Condition]:
        """The conditions that all have to hold."""
        return where.parsed(self.where).parts if self.where else []

    @property
    def columns(self) -> list[str]:
        """The columns that it names, in order."""
        of_where = [name for condition in self.conditions for name in condition.columns()]
        return list(dict.fromkeys([*of_where, *(top.column for top in self.tops), *[PREFERENCES] * bool(self.respect)]))

    def read(self, unit: ShardOfParent, names: Iterable[str]) -> pa.Table:
        """These columns of a unit."""
        names, (parent, shard) = list(dict.fromkeys(names)), of_unit((self.parent,), unit["name"])
        rows = parent.samples(shard, columns.of_sidecar(["key", *names]))
        return columns.joined(rows, shard.name, names, self.scores or {})

    def read_kept(self, unit: ShardOfParent, names: Iterable[str]) -> pa.Table:
        """The rows of a unit that the conditions keep, with these columns and those that it names."""
        rows = self.read(unit, [*names, *self.columns])
        stays = np.ones(len(rows), bool)
        for verdict in (*_of_conditions(self, rows), *_of_rights(self, rows)):
            stays &= verdict.is_null().to_numpy(zero_copy_only=False)
        return rows.filter(pa.array(stays))


def top(text: str) -> Top:
    """Of `COLUMN=SHARE`."""
    column, _, number = text.partition("=")
    try:
        share = Fraction(number)
    except (ValueError, ZeroDivisionError):
        share = Fraction(-1)
    if not column or not 0 < share <= 1:
        raise UsageError(f"--top {text}: not of the form COLUMN=SHARE, such as similarity=0.3")
    return Top(column, share)


def check(selection: Selection, known: Known) -> None:
    """Refuse columns that are not there or of another type, and missing values that --nulls does not speak of."""
    option = "--where"
    try:
        for condition in selection.conditions:
            where.check(condition, known.types)
        for column, _ in selection.tops:
            option = f"--top {column}"
            where.kind_of(column, known.types)
            kind = known.types[column]
            if not (pa.types.is_floating(kind) or (pa.types.is_integer(kind) and kind != pa.uint64())):
                raise where.WhereError(f"it is {kind}; give a column of numbers")
    except where.WhereError as error:
        raise UsageError(f"{option}: {error}") from None
    of_where = [name for each in selection.conditions for name in each.columns(but_of_nulls=True)]
    missing = known.missing([*of_where, *(each.column for each in selection.tops)])
    if missing and not selection.nulls:
        raise UsageError(
            f"{selection.parent.folder}: {missing}; say what becomes of those: --nulls drop, or --nulls keep"
        )


def select(selection: Selection, run: Run, flags: list[str]) -> int:
    """Make the run; returns the exit code."""
    parent, of_balance = selection.parent, selection.balance
    known = columns.known(parent.folder, [name for each in parent.config.input for name in each.keep_columns])
    check(selection, known)
    shards, labels = [(shard.name, shard.parquet_sha256) for shard in parent.shards], tuple[str, ...]()
    if run.config.audit.keep_dropped:  # languages of all shards: the report says who is left out
        labels = tuple(
            name
            for name, score in known.scores.items()
            if score.facts["kind"] == "language" and name == score.name and all(score.has(*shard) for shard in shards)
        )
    of_scores = known.scores_of([*selection.columns, *labels])
    columns.check_measured(shards, of_scores.values())
    scores = {column: score for column, score in known.scores.items() if score.name in of_scores}
    selection = replace(selection, scores=scores, labels=labels)
    tops = {top.column: str(float(top.share)) for top in selection.tops}
    settings: dict[str, Any] = {"where": selection.where, "top": tops, "nulls": selection.nulls}
    settings |= {"respect": selection.respect} if selection.respect else {}
    if of_balance:
        settings["balance"] = of_balance.to_json()
    steps, units = list[curate.Step](), partial(plan_of, (parent,))
    if of_balance:
        steps.append(curate.each(CONCEPTS, units, partial(_count_concepts, selection, of_balance)))
    if selection.tops:
        steps.append(curate.each(VALUES, units, partial(_count_values, selection)))
    making = Making(
        "select",
        settings,
        (parent,),
        partial(_choose, selection),
        before=steps,
        prepare=partial(_find_bounds, selection),
        also={"scores": {name: score.facts["digest"] for name, score in sorted(of_scores.items())}},
        conclude=partial(balance.conclude, of_balance) if of_balance else lambda _: None,
    )
    make(making, run, flags)
    return curate.show(run)


def _choose(selection: Selection, run: Run, unit: ShardOfParent) -> ChosenFacts:
    """Decide the samples of a unit."""
    keeps, of_balance = run.config.audit.keep_dropped, selection.balance
    of_sample = SAMPLE.names if keeps else ["key", "source", *(["caption"] if of_balance else [])]
    named = list(dict.fromkeys([*selection.columns, *selection.labels]))
    rows = selection.read(unit, [*of_sample, *named])
    values = rows.select([name for name in named if name != PREFERENCES])  # dropped rows have that as it is

    def scores(mask: Mask) -> "pa.Array[Any]":
        of_rows = values.filter(pa.array(mask)).to_pylist()
        return pa.array([json.dumps(each, ensure_ascii=False) for each in of_rows], pa.string())

    bounds = storage.read_json(run.work(_BOUNDS))
    verdicts = [*_of_conditions(selection, rows), *_of_rights(selection, rows)]
    verdicts += _of_tops(selection, bounds["tops"], rows)
    if of_balance:
        verdicts.append(balance.verdict(of_balance, run, bounds["balance"], rows))
    facts = chosen(run, unit["name"], rows, verdicts, scores)
    if of_balance:
        stays = parquet.strings(rows, "caption").take(CHOSEN_ROWS.array(run, unit["name"]))
        balance.count(of_balance, run, CHOSEN, unit["name"], stays)
    return facts


def _of_conditions(selection: Selection, rows: pa.Table) -> list[Verdict]:
    """The verdicts of the conditions, those on missing values among them."""
    verdicts, conditions = list[Verdict](), selection.conditions
    for number, (condition, holds) in enumerate(zip(conditions, where.holds(conditions, rows), strict=True), start=1):
        reason = missing = f"not_where:{number}"
        if condition.not_null:
            reason = f"score_missing:{_in_reason(condition.not_null)}"
        if condition.bound:
            column, sign, _ = condition.bound
            reason = f"{'score_below' if sign in ('>', '>=') else 'score_above'}:{_in_reason(column)}"
        verdicts.append(drop_where(pc.and_kleene(holds.is_valid(), pc.invert(holds)), reason))
        if holds.null_count and selection.nulls != "keep":
            names = condition.columns(but_of_nulls=True)
            missing = f"score_missing:{_in_reason(names[0])}" if len(names) == 1 else missing
            verdicts.append(drop_where(holds.is_null(), missing))
    return verdicts


def _of_rights(selection: Selection, rows: pa.Table) -> list[Verdict]:
    """The verdicts of what rights holders say against the purpose, one a notation; and of rows where nobody looked."""
    if not selection.respect:
        return []
    token = product_token(selection.parent.config.fetch.user_agent_sent)
    said: Any = rows[PREFERENCES].combine_chunks()
    against = [opposed((Said(**one) for one in each or ()), selection.respect, token) for each in said.to_pylist()]
    verdicts = [
        drop_where(pa.array([notation in each for each in against], pa.bool_()), reason(notation))
        for notation in NOTATIONS
    ]
    if said.null_count and selection.nulls != "keep":
        verdicts.append(drop_where(said.is_null(), f"score_missing:{PREFERENCES}"))
    return verdicts


def _in_reason(name: str) -> str:
    return "_".join(name.split())  # reasons are words


def _of_tops(selection: Selection, bounds: Iterable[int | None], rows: pa.Table) -> list[Verdict]:
    """The verdicts of the shares of largest values; `bounds` are the smallest numbers (`ordered`) that stay."""
    verdicts = list[Verdict]()
    for top, bound in zip(selection.tops, bounds, strict=True):
        values = rows[top.column].combine_chunks()
        is_measured = values.is_valid().to_numpy(zero_copy_only=False)
        is_below = np.zeros(len(values), bool)
        if bound is not None:
            numbers = ordered(values.drop_null())
            is_below[is_measured] = numbers < numbers.dtype.type(bound)
        verdicts.append(drop_where(pa.array(is_below), f"not_in_top:{top.column}"))
        if not is_measured.all() and selection.nulls != "keep":
            verdicts.append(drop_where(pa.array(~is_measured), f"score_missing:{top.column}"))
    return verdicts


# Passes that come first: one for concepts, and one for values ---------------------------------------------------------


def _count_concepts(selection: Selection, of_balance: Balance, run: Run, unit: ShardOfParent) -> CountedFacts:
    captions = parquet.strings(selection.read_kept(unit, ["caption"]), "caption")
    return CountedFacts(rows=[balance.count(of_balance, run, CONCEPTS, unit["name"], captions)])


def _count_values(selection: Selection, run: Run, unit: ShardOfParent) -> CountedFacts:
    """Count the values of each column, of the samples that the conditions keep and that have one."""
    rows, counts = selection.read_kept(unit, []), list[int]()
    for number, top in enumerate(selection.tops):
        numbers = ordered(rows[top.column].combine_chunks().drop_null())
        arrays.save(_values(run, unit["name"], number), distinct(numbers))
        counts.append(len(numbers))
    return CountedFacts(rows=counts)


def _values(run: Run, unit: str, column: int) -> str:
    return run.work(VALUES.step, f"{unit}.{column}.values")


def _find_bounds(selection: Selection, run: Run) -> None:
    """Write the bound of each share of largest values, None where no sample has one, and the limit of the balance."""
    units, tops = list(run.all_facts(VALUES)), list[int | None]()
    for column, top in enumerate(selection.tops):

        def parts(column: int = column) -> Iterator[Ordered]:
            return storage.each(lambda unit: arrays.read(_values(run, unit[0], column)), units, place=run.folder)

        k = rows_of_share(top.share, sum(facts.rows[column] for _, facts in units))
        tops.append(kth_largest(parts, k))
    limit = balance.total(selection.balance, run) if selection.balance else 0
    storage.write_json(run.work(_BOUNDS), {"tops": tops, "balance": limit})


def ordered(values: "pa.Array[Any]") -> Ordered:
    """Numbers in the order of some values without nulls: uint32[n], or uint64[n] of a type that needs 64 bits."""
    numbers = values.to_numpy(zero_copy_only=False)
    bits = 64 if values.type in (pa.float64(), pa.int64(), pa.uint32()) else 32
    unsigned, sign = np.dtype(f"u{bits // 8}").type, 1 << (bits - 1)
    if pa.types.is_floating(values.type):
        bit_pattern = (numbers.astype(f"f{bits // 8}") + 0).view(unsigned)  # there is one zero
        return np.where(bit_pattern >> unsigned(bits - 1), ~bit_pattern, bit_pattern | unsigned(sign))
    return numbers.astype(f"i{bits // 8}").view(unsigned) ^ unsigned(sign)


def distinct(numbers: Ordered) -> Ordered:
    """The distinct numbers, rising, and how often each occurs: [2, k]."""
    values, times = np.unique(numbers, return_counts=True)
    return np.stack([values, times.astype(values.dtype)])


def rows_of_share(share: Fraction, rows: int) -> int:
    """How many of so many rows a share is, rounded up."""
    return -((-share.numerator * rows) // share.denominator)


def kth_largest(parts: Callable[[], Iterable[Ordered]], k: int) -> int | None:
    """The k-th largest number of all parts, each [2, n]: distinct numbers, and how often; None for the 0th.

    Numbers that are the same stay together: no sample depends on another one's key. Each pass over the parts finds 16
    bits, the highest first, by a histogram: memory does not grow with the samples.
    """
    bits = max((8 * part.dtype.itemsize for part in islice(parts(), 1)), default=0) if k else 0
    high = 0  # the bits that are known; k counts within the numbers that have them
    for shift in range(bits - 16, -1, -16):
        counts = np.zeros(BUCKETS, np.int64)
        for numbers, times in parts():
            shifted = numbers >> numbers.dtype.type(shift)
            is_in = shifted >> numbers.dtype.type(16) == high
            np.add.at(counts, (shifted & numbers.dtype.type(BUCKETS - 1))[is_in], times[is_in].astype(np.int64))
        from_above = np.cumsum(counts[::-1])
        place = int(np.searchsorted(from_above, k))
        k -= int(from_above[place - 1]) if place else 0
        high = high << 16 | BUCKETS - 1 - place
    return high if bits else None


# A list of keys ------------------------------------------------------------------------------------------------------


def subset(parent: Parent, run: Run, lists: Sequence[str], flags: list[str]) -> int:
    """Make a run of the pairs whose key, or whose `uid` among the kept columns, the lists have."""
    files: Files = ()
    for path in lists:
        try:
            files += ((path, content(path)),)
        except OSError as error:
            why = error.strerror or error
            raise UsageError(f"--list {path}: cannot be read ({why}); give the path of a list") from None
    listed = len(keys_of(files))
    digests = {storage.name(path): digest for path, digest in files}
    choose = partial(choose_listed, parent, files)
    made = make(Making("subset", {"keys": digests}, (parent,), choose), run, flags)
    pairs = storage.read_json(made.path("summary.json"))["pairs"]
    if pairs < listed:
        message = f"{listed:,} listed, and {pairs:,} pairs of them in the run"
        terminal.stderr().print(terminal.shown(message), soft_wrap=True)
    return curate.show(made)


def choose_listed(parent: Parent, lists: Files, run: Run, unit: ShardOfParent) -> ChosenFacts:
    """Decide the samples of a unit: those that no list has go."""
    rows, listed = parent.samples(of_unit((parent,), unit["name"])[1]), keys_of(lists)
    extras = (json.loads(extra).get(UID) if extra else None for extra in parquet.values(rows, "extra"))
    uids = pa.array([uid if isinstance(uid, str) else None for uid in extras], pa.string())
    keys: Any = rows["key"]
    is_listed: Any = pc.or_(pc.is_in(keys.combine_chunks(), value_set=listed), pc.is_in(uids, value_set=listed))
    return chosen(run, unit["name"], rows, [drop_where(pc.invert(is_listed), DropReason.NOT_LISTED)])


@functools.lru_cache(maxsize=2)
def keys_of(files: Files) -> "pa.Array[Any]":
    """The distinct entries of lists, sorted.

    A list is text, a line each; Parquet with a column `key` or `uid`; or a .npy of DataComp: two unsigned 64-bit
    numbers an id, which are its 32 hex digits.
    """
    keys = set[str]()
    for path, _ in files:
        try:
            keys |= set(_entries(storage.read_bytes(path)))
        except (OSError, ValueError, KeyError, AltalignError, pa.ArrowException) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else str(error).splitlines()[0]
            repair = "give keys, one a line; Parquet with a column key or uid; or a .npy of DataComp"
            raise UsageError(f"--list {path}: cannot be read as a list of keys ({why}); {repair}") from None
    if not keys:
        raise UsageError(f"--list {', '.join(path for path, _ in files)}: nothing is listed; write one key a line")
    return pa.array(sorted(keys), pa.string())


def _entries(data: bytes) -> list[str]:
    if data.startswith(b"\x93NUMPY"):
        array = np.load(io.BytesIO(data), allow_pickle=False)
        if array.dtype.names is None or len(array.dtype.names) != 2:
            raise ValueError(f"an array of {array.dtype}, not of two uint64 an id")
        high, low = (array[name].tolist() for name in array.dtype.names)
        return [f"{first:016x}{second:016x}" for first, second in zip(high, low, strict=True)]
    if data.startswith(b"PAR1"):
        table = pq.read_table(pa.BufferReader(data))
        name = "key" if "key" in table.column_names else UID
        return [str(value) for value in table[name].drop_null().to_pylist()]
    return [line.strip().lower() for line in data.decode("utf-8-sig").splitlines() if line.strip()]


# Shares --------------------------------------------------------------------------------------------------------------


def split(parent: Parent, configs: Sequence[CurateConfig], shares: Sequence[Fraction], flags: list[str]) -> int:
    """Make a run of each share: pairs of an image, and images nearer to each other than `NEAR`, go together."""
    groups = shard_images.groups(parent.folder, embedder=parent.config.decontaminate.embedder, above=NEAR)
    code, begin = 0, Fraction(0)
    for config, share in zip(configs, shares, strict=True):
        settings = {"share": str(share), "from": str(begin), "similarity_above": NEAR}
        choose = partial(_choose_share, parent, groups, (begin, begin + share))
        run = make(Making("split", settings, (parent,), choose), Run(config.run.folder, config, ()), flags)
        code, begin = curate.show(run) or code, begin + share
    return code


def _choose_share(
    parent: Parent, groups: Mapping[str, str], share: tuple[Fraction, Fraction], run: Run, unit: ShardOfParent
) -> ChosenFacts:
    rows = parent.samples(of_unit((parent,), unit["name"])[1])
    places = (place_of(groups.get(image, image)) for image in parquet.values(rows, "image_id"))
    is_other = pa.array([not share[0] <= place < share[1] for place in places], pa.bool_())
    return chosen(run, unit["name"], rows, [drop_where(is_other, DropReason.NOT_LISTED)])


@functools.lru_cache(maxsize=4_096)
def place_of(group: str) -> Fraction:
    """Where a group is among all, of 1: by a hash that nothing else uses, so that no other choice depends on it."""
    return Fraction(int.from_bytes(blake2b(group.encode(), digest_size=8, person=b"split").digest(), "big"), 1 << 64)
