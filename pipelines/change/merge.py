"""`altalign merge`: a run of all samples of several runs, as far as one run over all the input would have them too.

Of one run: the shards of all generations become those of one.
"""

from binascii import unhexlify
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, combinations
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from altalign import storage, terminal
from altalign.data import generations, scores
from altalign.data.counts import Counts
from altalign.data.reasons import DropReason, Stage, Verdict, drop_where
from altalign.data.scores import Score
from altalign.data.stages import REMOVED_FILE, REPORT, own_files
from altalign.dedup.hash_tables import HashTable
from altalign.dedup.merge import merge_pairs
from altalign.errors import UsageError
from altalign.filters import text, words
from altalign.machine import interrupts
from altalign.machine.threads import in_threads
from altalign.pipelines import curate
from altalign.pipelines.change import remove
from altalign.pipelines.change.conclude import conclude, lineage, write_funnel
from altalign.pipelines.derive import choose_rows, copy_scores, copy_shards, parents
from altalign.pipelines.derive.copy_shards import Numbers
from altalign.pipelines.derive.make_run import Making, make, plan_of
from altalign.pipelines.derive.parents import Parent, of_unit
from altalign.pipelines.run.removal_list import of_run
from altalign.pipelines.run.shard_tables import (
    COMMON,
    COMMON_HASHES,
    REPEATED,
    REPEATED_KEYS,
    ChosenFacts,
    CommonFacts,
    ShardFacts,
    ShardOfParent,
)
from altalign.pipelines.run.units import Run, Unit
from altalign.settings.common import flatten, stage_of
from altalign.settings.curate import CurateConfig
from altalign.storage import atomic_change, parquet
from altalign.storage.atomic_change import Change
from altalign.terminal import many, shown

_OF_FILES = ("file ", "files of test set ", "module ")  # begin names of what stages rest on, beside settings
_OF_ASKING = ("source", "ports", "allow_addresses", "user_agent")  # of [fetch]: no image that came depends on them
_SHOWN = 8
_ONLY = "00000"
_OF_CANDIDATES = (Stage.JUDGE, Stage.FETCH, Stage.IMAGE, Stage.DECONTAMINATE, Stage.SELECT)  # whose rows are candidates
_GO = ("clusters", *REPORT)  # rest on the shards as they were

KINDS = ("texts", "images")
Pairs = npt.NDArray[np.uint64]  # [n, 2]: hashes of a text and its image, or the other way round
_NO_PAIRS = np.zeros((0, 2), np.uint64)


def merge(runs: Sequence[Parent], config: CurateConfig, flags: list[str]) -> int:
    """Make a run of several; `config` is that of the first, for the new folder."""
    check(runs)
    merged, runs = Run(config.run.folder, reconciled(config, runs), ()), tuple(runs)
    before = curate.each(COMMON, lambda _: [Unit(name=_ONLY)], partial(find, runs))
    not_known = list(_not_known(runs))
    choosing, learn = partial(choose, runs), partial(_learn, not_known)
    making = Making("merge", {"not_known": not_known}, runs, choosing, before=(before,), conclude=learn)
    made, out = make(making, merged, flags), 0
    if storage.exists(path := made.path(REMOVED_FILE)):  # what was removed from any of them
        with storage.locked(made.folder), own_files(made.folder):
            parent = parents.opened(made.folder, made.config)
            removal = remove.find(parent, of_run(path), near=None)
            if len(removal.rows):
                because = "refused by altalign merge"
                remove.remove(made, parent, removal, by="", because=because, lineage=making.lineage)
            out = removal.pairs
    if out:
        terminal.stderr().print(f"{many(out, 'pair')} that one run has removed and another had: left out")
    code = curate.show(made)
    for line in storage.read_sealed(made.path("manifest.json"))["lineage"]["settings"]["not_known"]:
        terminal.stderr().print(shown(line), style="yellow", soft_wrap=True)
    return code


def _learn(not_known: list[str], run: Run) -> None:
    """Add what a count of all rows has shown, before the manifest is written."""
    (facts,) = (facts for _, facts in run.all_facts(COMMON))
    if n := facts.images_that_differ:
        not_known.append(f"images that have other bytes in another run: {n:,}; pairs keep their own")
    if n := facts.pairs_without_image:
        not_known.append(
            f"pairs whose image one run did not get and another has: {n:,}; one run over all the input may keep them, "
            "or their row of a pair that several runs have"
        )


# Whether, and as what ------------------------------------------------------------------------------------------------


def check(runs: Sequence[Parent]) -> None:
    """Refuse runs that cannot be merged, with what differs."""
    for one, other in combinations(runs, 2):
        if shared := _numbers(one.digest, one.lineage) & _numbers(other.digest, other.lineage):
            what = f"made of the same run ({sorted(shared)[0][:12]})"
            raise UsageError(f"{one.folder} and {other.folder}: {what}; select from that one instead")
        if differing := list(_differences(one, other)):
            more = f"; and {len(differing) - _SHOWN} more" if len(differing) > _SHOWN else ""
            raise UsageError(
                f"{one.folder} and {other.folder} differ: {'; '.join(differing[:_SHOWN])}{more}; curate one of them "
                "anew with the settings of the other"
            )
    for run in runs:
        if not run.config.audit.keep_dropped:
            raise UsageError(
                f"{run.folder}: audit.keep_dropped = false, so on how many images a text is in all runs cannot be "
                "counted; curate it anew with audit.keep_dropped = true"
            )
        if run.config.dedup.within_pool != "off":
            raise UsageError(
                f"{run.folder}: dedup.within_pool = {run.config.dedup.within_pool!r}, and near-duplicates of one "
                "run in another are not looked for; curate all the input as one run"
            )


def _numbers(digest: str, made_of: Mapping[str, Any] | None) -> set[str]:
    """The numbers of a run and of all runs that it was made of."""
    numbers = {digest}
    for parent, before in zip(*((made_of or {}).get(name, ()) for name in ("parents", "before")), strict=True):
        numbers |= _numbers(parent, before)
    return numbers


def _differences(one: Parent, other: Parent) -> Iterator[str]:
    """What decides pairs and differs between two runs, in words."""
    not_deciding: Any = {
        **{"run": True, "input": True, "card": True, "shards": {"samples_per_shard"}, "text": {"tables"}},
        "fetch": set(_OF_ASKING),
    }
    settings, files = list[dict[str, Any]](), list[dict[str, Any]]()
    for run in (one, other):
        settings.append(dict(flatten(run.config.model_dump(mode="json", exclude=not_deciding))))
        stages = storage.read_json(run.path("run.json")).get("stages", {})  # of a run that was made of others: none
        reads = chain.from_iterable(stage.get("reads", {}).items() for stage in stages.values())
        files.append({name: value for name, value in reads if name.startswith(_OF_FILES)})
    for name in dict.fromkeys([*settings[0], *settings[1]]):
        values = [each.get(name, "absent") for each in settings]
        if values[0] != values[1] and stage_of(CurateConfig, name) is not None:
            yield f"{name} = {values[0]!r} and {values[1]!r}"
    for name in sorted(files[0].keys() & files[1].keys()):
        if files[0][name] != files[1][name]:
            yield f"{name}: other content"


def reconciled(config: CurateConfig, runs: Sequence[Parent]) -> CurateConfig:
    """The settings of the new run: all inputs; of the card what all runs say."""
    values = config.model_dump(mode="json")
    every = [each for run in runs for each in run.config.input]
    inputs = [{**each.model_dump(mode="json"), "name": each.source} for each in every]  # as their pairs carry it
    fetches = [run.config.fetch for run in runs]
    if any(each.source == "web" for each in fetches):
        values["fetch"]["source"] = "web"
    for name in ("ports", "allow_addresses"):
        values["fetch"][name] = list(dict.fromkeys(value for each in fetches for value in getattr(each, name)))
    values["input"] = [each for number, each in enumerate(inputs) if each not in inputs[:number]]
    cards = [run.config.card.model_dump(mode="json") for run in runs]
    same = {name: value for name, value in cards[0].items() if all(card[name] == value for card in cards)}
    languages = list(dict.fromkeys(language for card in cards for language in card["languages"]))
    values["card"] = {**same, "languages": languages if all(card["languages"] for card in cards) else []}
    return CurateConfig.from_values(values, where="merge")


def _not_known(runs: Sequence[Parent]) -> Iterator[str]:
    """What one run over all the input may have decided otherwise, and cannot be known from these."""
    vocabularies = [storage.read_json(run.path("tables", "vocabulary.json")) for run in runs]
    size = runs[0].config.text.vocabulary_size
    if (
        not all(each.get("all") for each in vocabularies)
        or sum(each.get("distinct", 0) for each in vocabularies) > size
    ):
        yield "text.vocabulary_size: which n-grams are rare was decided by each run alone"
    if runs[0].config.decontaminate.test_sets and not runs[0].config.decontaminate.calibration:
        yield "decontaminate: each run has learned a map and clusters of its own"
    for name in _OF_ASKING:
        if len({str(getattr(run.config.fetch, name)) for run in runs}) > 1:
            yield f"fetch.{name}: differs, and each image came as its own run has it"
    if any(storage.exists(run.path(REMOVED_FILE)) for run in runs):
        yield "what was removed from a run is not counted"


# What the runs have in common ----------------------------------------------------------------------------------------


def find(runs: tuple[Parent, ...], run: Run, unit: Unit) -> CommonFacts:
    """Find the texts and images over their limits, and the rows that go because another run has their pair.

    These are counted over all candidates of all runs, those in shards and those that were dropped. 32 bytes for each
    candidate whose text and image are in some shard are in memory.
    """
    kept = [_hashes(rows) for of_run in runs for rows in _rows(of_run, "image_id", "caption")]
    texts, images = map(np.unique, np.concatenate([_NO_PAIRS, *kept]).T)
    of_texts, of_images = list[Pairs](), list[Pairs]()
    dropped = (
        _hashes(rows) for of_run in runs for stage in _OF_CANDIDATES for rows in _dropped(of_run, stage, "caption")
    )
    for pairs in chain(kept, dropped):
        of_texts.append(pairs[np.isin(pairs[:, 0], texts)])
        of_images.append(pairs[np.isin(pairs[:, 1], images)][:, ::-1])
    limits = run.config.text.images_per_text_at_most, run.config.image.texts_per_image_at_most
    over = [_over(pairs, limit) for pairs, limit in zip((of_texts, of_images), limits, strict=True)]
    for kind, hashes in zip(KINDS, over, strict=True):
        COMMON_HASHES[kind].save(run, hashes, unit["name"])
    repeated = _repeated(runs)
    REPEATED_KEYS.write(run, repeated, unit["name"])
    names, stored, without = ("image_id", "found_sha256"), list[Pairs](), 0
    for each in runs:
        stored += [np.column_stack([_halves(rows, name) for name in names]) for rows in _rows(each, *names)]
        without += sum(int(np.isin(_halves(rows, "image_id"), images).sum()) for rows in _dropped(each, Stage.FETCH))
    differ = len(_over(stored, 1))  # images that have other bytes in one run than in another
    return CommonFacts(len(over[0]), len(over[1]), len(repeated), differ, without)


def _rows(run: Parent, *columns: str) -> Iterator[pa.Table]:
    return (run.sidecar(shard.name, columns) for shard in run.shards)


def _dropped(run: Parent, stage: Stage, *columns: str) -> Iterator[pa.Table]:
    """image_id and these columns of the rows with an image that a stage dropped."""
    folder = run.path("dropped", stage.value)
    for name in storage.names(folder, ".parquet") if storage.kind(folder) == "folder" else ():
        for batch in parquet.read_whole(storage.join(folder, name), ["image_id", *columns]):
            rows = pa.Table.from_batches([batch])
            yield rows.filter(rows["image_id"].is_valid())


def _hashes(rows: pa.Table) -> Pairs:
    """The hashes of the text and the image of n rows."""
    interrupts.check()
    captions, texts = parquet.strings(rows, "caption"), np.zeros(len(rows), np.uint64)
    for begin in range(0, len(rows), words.BLOCK):
        scanned = words.scan(captions.slice(begin, words.BLOCK))
        texts[begin : begin + words.BLOCK] = scanned.texts
    return np.column_stack([texts, _halves(rows, "image_id")])


def _halves(rows: pa.Table, name: str) -> npt.NDArray[np.uint64]:
    """The first 64 bits of n hashes in hex digits."""
    digits = "".join(value[:16] for value in parquet.values(rows, name))
    return np.frombuffer(unhexlify(digits), ">u8").astype(np.uint64)


def _over(parts: Sequence[Pairs], limit: int) -> Pairs:
    """Hashes that come with more distinct others than a limit, rising, and with how many."""
    hashes, counts, _ = merge_pairs(np.concatenate([_NO_PAIRS, *parts]), limit=limit)
    return np.column_stack([hashes, counts.astype(np.uint64)])


def _repeated(runs: Sequence[Parent]) -> pa.Table:
    """The rows (`REPEATED`) that go: of each pair the one with the first page stays, as within a run."""
    keys = [_keys(rows) for run in runs for rows in _rows(run, "key")]
    every, times = np.unique(np.concatenate([np.zeros(0, "S32"), *keys]), return_counts=True)
    twice = every[times > 1]
    rows = list[tuple[str, tuple[bool, str, int]]]()
    for number, run in enumerate(runs) if len(twice) else ():
        for of_shard in _rows(run, "key", "page_url"):
            of_shard = of_shard.filter(pa.array(np.isin(_keys(of_shard), twice)))
            for key, page in zip(*(parquet.values(of_shard, name) for name in ("key", "page_url")), strict=True):
                rows.append((key, (page is not None, page or "", number)))
    first = dict(sorted(rows, reverse=True))  # of each key the smallest comes last
    gone = [{"key": key, "parent": place[2]} for key, place in sorted(rows) if first[key] != place]
    return pa.Table.from_pylist(gone, REPEATED)


def _keys(rows: pa.Table) -> npt.NDArray[np.bytes_]:
    return np.array(parquet.values(rows, "key"), "S32")


def choose(runs: tuple[Parent, ...], run: Run, unit: ShardOfParent) -> ChosenFacts:
    """Which rows of a shard stay: those that one run over all the input would have kept, as far as that is known."""
    parent, shard = of_unit(runs, unit["name"])
    rows = parent.samples(shard)
    counts = list[npt.NDArray[np.int64]]()  # on or with how many others each is; 0 of one that is not over the limit
    for kind, hashes in zip(KINDS, _hashes(rows).T, strict=True):
        over = COMMON_HASHES[kind].array(run, _ONLY)
        table = HashTable(np.ascontiguousarray(over[:, 0]), over[:, 1].astype(np.int64))
        counts.append(table.lookup(hashes))
    of_text, of_image = counts
    gone = REPEATED_KEYS.read(run, _ONLY).filter(pc.field("parent") == unit["parent"])["key"]
    is_repeated: Any = pc.is_in(rows["key"].combine_chunks(), value_set=gone.combine_chunks())
    more: dict[str, Any] = {
        "images_per_text": pa.array(of_text, pa.int64(), mask=of_text == 0),
        "texts_per_image": pa.array(of_image, pa.int64(), mask=of_image == 0),
        "kept_key": pc.if_else(is_repeated, rows["key"], pa.scalar(None, pa.string())),
    }
    for name, column in more.items():
        rows = rows.append_column(name, column)
    verdicts: list[Verdict] = [
        drop_where(pa.array(of_text > 0), text.text_on_too_many_images.name),
        drop_where(pa.array(of_image > 0), text.image_has_too_many_texts.name),
        drop_where(is_repeated, DropReason.PAIR_REPEATED),
    ]
    return choose_rows.chosen(run, unit["name"], rows, verdicts)


# One run -------------------------------------------------------------------------------------------------------------


def compact(config: CurateConfig) -> None:
    """Make one generation of the shards of a run."""
    run = Run(config.run.folder, config, ())
    with storage.locked(run.folder), own_files(run.folder):
        atomic_change.check_none(run.folder)
        storage.sweep(run.folder)
        parent = parents.opened(run.folder, config)
        names = [shard.name for shard in parent.shards]
        is_full = all(shard.rows == config.shards.samples_per_shard for shard in parent.shards[:-1])
        is_one = parent.generations == 1 and is_full
        if is_one and names == [generations.named(1, number) for number in range(len(names))]:
            message = "of one generation already; it stays as it is"
        else:
            message = f"{many(_compact(run, parent), 'shard')} of one generation"
    terminal.stdout().print(f"{shown(run.folder)}: {message}", highlight=False, soft_wrap=True)


def _compact(run: Run, parent: Parent) -> int:
    """Write all shards anew, and have them come at once; returns how many there are."""
    for score in scores.all_of(run.folder):
        missing = (shard for shard in parent.shards if not score.has(shard.name, shard.parquet_sha256))
        if shard := next(missing, None):
            raise UsageError(
                f"{score.folder}: has no values of shard {shard.name}; measure them with `altalign score`, or delete it"
            )
    change = Change(run.folder, durable=run.config.run.durable)

    def rows_of(name: str) -> Numbers:
        return np.arange(of_unit((parent,), name)[1].rows)

    things = [(unit["name"], unit["rows"]) for unit in plan_of((parent,), run)]
    plan = parents.in_one_order((parent,), things, rows_of, run.config.shards.samples_per_shard)
    parts_of = {generations.named(1, number): parts for number, parts in enumerate(plan)}
    names = [*parts_of]

    def write(name: str) -> ShardFacts:
        with change.noted():
            return parents.write_shard((parent,), change.path("shards"), name, parts_of[name], rows_of)

    def values(score: Score, name: str) -> pa.Table:
        shards = [(of_unit((parent,), unit)[1].name, begin, end) for unit, begin, end in parts_of[name]]
        table = pa.concat_tables([score.values(shard).slice(begin, end - begin) for shard, begin, end in shards])
        return copy_scores.in_order_of(change.path(f"shards/{name}.parquet"), table, score.folder)

    made = in_threads(write, names, copy_shards.at_once(run.folder))
    shards, before = list(zip(names, made, strict=True)), {shard.name for shard in parent.shards}
    deleted = [*_GO, *(f"shards/{name}.{ending}" for name in before for ending in ("tar", "parquet"))]
    deleted += copy_scores.change_scores(change, shards, before | {*names}, values)
    size, of_sources = sum(facts.bytes for facts in made), Counter[str]()
    for facts in made:
        of_sources.update(facts.source_bytes)
    write_funnel(run, change, lambda row: row.update(bytes=of_sources[row["source"]] if row["source"] else size))
    counts, compacted = Counts.from_json(parents.counts_of(parent)), lineage(parent, "compact", {"shards": len(shards)})
    conclude(run, change, shards, deleted, counts=counts, lineage=compacted)
    return len(shards)
