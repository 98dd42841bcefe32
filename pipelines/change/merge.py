"""`altalign merge`: a run of all samples of several runs, as far as one run over all the input would have them too.

Of one run, whose shards may be of several generations: a run of the same samples in full shards and one order.
"""

from binascii import unhexlify
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, combinations, islice
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from altalign import storage, terminal
from altalign.data.reasons import DropReason, Stage, Verdict, drop_where
from altalign.data.stages import REMOVED_FILE, own_files
from altalign.dedup.hash_tables import HashTable
from altalign.dedup.merge import merge_pairs
from altalign.errors import UsageError
from altalign.filters import text, words
from altalign.machine import interrupts
from altalign.pipelines import curate
from altalign.pipelines.change import remove
from altalign.pipelines.derive import parents
from altalign.pipelines.derive.make_run import Making, chosen, make
from altalign.pipelines.derive.parents import Parent, of_unit
from altalign.pipelines.run.removal_list import of_run
from altalign.pipelines.run.shard_tables import ChosenFacts, ShardOfParent
from altalign.pipelines.run.units import Run, Table
from altalign.settings.common import flatten, stage_of
from altalign.settings.curate import CurateConfig
from altalign.storage import parquet
from altalign.terminal import many, shown

_OF_FILES = ("file ", "files of test set ", "module ")  # begin names of what stages rest on, beside settings
_OF_ASKING = ("source", "ports", "allow_addresses", "user_agent")  # of [fetch]: no image that came depends on them
_SHOWN = 8
_OF_CANDIDATES = (Stage.JUDGE, Stage.FETCH, Stage.IMAGE, Stage.DECONTAMINATE, Stage.SELECT)  # whose rows are candidates

# What `_find` leaves for `_choose`: hashes of texts and images over their limits, and how many others each comes with;
# keys that several runs have, each with the number of a run whose row goes.
_OVER = {
    kind: Table(f"work/select/{kind}", f"hashes of {kind} over their limit, and counts", np.dtype(np.uint64))
    for kind in ("texts", "images")
}
_GONE = Table("work/select/repeated", "rows that go", pa.schema([("key", pa.string()), ("parent", pa.int32())]))

Pairs = npt.NDArray[np.uint64]  # [n, 2]: hashes of a text and its image, or the other way round
_NO_PAIRS = np.zeros((0, 2), np.uint64)


def merge(runs: Sequence[Parent], config: CurateConfig, flags: list[str]) -> int:
    """Make a run of several, or of one; `config` is that of the first, for the new folder."""
    check(runs)
    runs, not_known = tuple(runs), list(_not_known(runs))
    merged = Run(config.run.folder, reconciled(config, runs), ())
    making = Making("merge", {"not_known": not_known}, runs, partial(_choose, runs), prepare=partial(_find, runs))
    made = make(making, merged, flags)
    if len(runs) > 1 and storage.exists(path := made.path(REMOVED_FILE)):  # what was removed from any of them
        with storage.locked(made.folder), own_files(made.folder):
            parent = parents.opened(made.folder, made.config)
            removal = remove.find(parent, of_run(path), near=None)
            if len(removal.rows):
                because = "refused by altalign merge"
                remove.remove(made, parent, removal, by="", because=because, lineage=making.lineage)
                left_out = f"{many(removal.pairs, 'pair')} that one run has removed and another had: left out"
                terminal.stderr().print(left_out)
    code = curate.show(made)
    for line in not_known:
        terminal.stderr().print(shown(line), style="yellow", soft_wrap=True)
    return code


# Whether, and as what ------------------------------------------------------------------------------------------------


def check(runs: Sequence[Parent]) -> None:
    """Refuse runs that cannot be merged, with what differs."""
    for one, other in combinations(runs, 2):
        if shared := _numbers(one.digest, one.lineage) & _numbers(other.digest, other.lineage):
            what = f"made of the same run ({sorted(shared)[0][:12]})"
            raise UsageError(f"{one.folder} and {other.folder}: {what}; select from that one instead")
        if differing := list(islice(_differences(one, other), _SHOWN)):
            raise UsageError(
                f"{one.folder} and {other.folder} differ: {'; '.join(differing)}; curate one of them anew with the "
                "settings of the other"
            )
    for run in runs if len(runs) > 1 else ():
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
        **dict.fromkeys(("run", "input", "card"), True),
        "shards": {"samples_per_shard", "caption_shares"},  # the weights of inputs of one name, below
        "text": {"tables"},
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
    weights, others = one.config.caption_weights, other.config.caption_weights
    for source in sorted(weights.keys() & others.keys()):
        if weights[source] != others[source]:
            yield f"shards.caption_shares.{source} = {weights[source]} and {others[source]}"
    for name in sorted(files[0].keys() & files[1].keys()):
        if files[0][name] != files[1][name]:
            yield f"{name}: other content"


def reconciled(config: CurateConfig, runs: Sequence[Parent]) -> CurateConfig:
    """The settings of the new run: all inputs; of the card what all runs say."""
    if len(runs) == 1:
        return config
    values = config.model_dump(mode="json")
    every = [each for run in runs for each in run.config.input]
    inputs = [{**each.model_dump(mode="json"), "name": each.source} for each in every]  # as their pairs carry it
    fetches = [run.config.fetch for run in runs]
    if any(each.source == "web" for each in fetches):
        values["fetch"]["source"] = "web"
    for name in ("ports", "allow_addresses"):
        values["fetch"][name] = list(dict.fromkeys(value for each in fetches for value in getattr(each, name)))
    values["input"] = [each for number, each in enumerate(inputs) if each not in inputs[:number]]
    if any(run.config.shards.caption_shares for run in runs):
        values["shards"]["caption_shares"] = dict(chain(*(run.config.caption_weights.items() for run in runs)))
    cards = [run.config.card.model_dump(mode="json") for run in runs]
    same = {name: value for name, value in cards[0].items() if all(card[name] == value for card in cards)}
    languages = list(dict.fromkeys(language for card in cards for language in card["languages"]))
    values["card"] = {**same, "languages": languages if all(card["languages"] for card in cards) else []}
    return CurateConfig.from_values(values, where="merge")


def _not_known(runs: Sequence[Parent]) -> Iterator[str]:
    """What one run over all the input may have decided otherwise, and cannot be known from these."""
    if len(runs) == 1:
        return
    yield "images that came with other bytes, or not at all, in one run: each pair has what its own run got"
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


def _find(runs: tuple[Parent, ...], run: Run) -> None:
    """Find the texts and images over their limits, and the rows that go because another run has their pair.

    These are counted over all candidates of all runs, those in shards and those that were dropped. 32 bytes for each
    candidate whose text and image are in some shard are in memory.
    """
    several = runs if len(runs) > 1 else ()  # the pairs of one were counted when it was made
    kept = [_hashes(rows) for each in several for rows in _rows(each, "image_id", "caption")]
    texts, images = map(np.unique, np.concatenate([_NO_PAIRS, *kept]).T)
    of_texts, of_images = list[Pairs](), list[Pairs]()
    dropped = (
        _hashes(rows) for each in several for stage in _OF_CANDIDATES for rows in _dropped(each, stage, "caption")
    )
    for pairs in chain(kept, dropped):
        of_texts.append(pairs[np.isin(pairs[:, 0], texts)])
        of_images.append(pairs[np.isin(pairs[:, 1], images)][:, ::-1])
    _OVER["texts"].save(run, _over(of_texts, run.config.text.images_per_text_at_most))
    _OVER["images"].save(run, _over(of_images, run.config.image.texts_per_image_at_most))
    _GONE.write(run, _repeated(several))


def _rows(run: Parent, *columns: str) -> Iterator[pa.Table]:
    return (run.samples(shard, columns) for shard in run.shards)


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
    """The rows (`_GONE`) that go: of each pair the one with the first page stays, as within a run."""
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
    return pa.Table.from_pylist(gone, _GONE.schema)


def _keys(rows: pa.Table) -> npt.NDArray[np.bytes_]:
    return np.array(parquet.values(rows, "key"), "S32")


def _choose(runs: tuple[Parent, ...], run: Run, unit: ShardOfParent) -> ChosenFacts:
    """Which rows of a shard stay: those that one run over all the input would have kept, as far as that is known."""
    parent, shard = of_unit(runs, unit["name"])
    rows = parent.samples(shard)
    counts = list[npt.NDArray[np.int64]]()  # on or with how many others each is; 0 of one that is not over the limit
    for over, hashes in zip(_OVER.values(), _hashes(rows).T, strict=True):
        found, times = over.array(run).T
        counts.append(HashTable(np.ascontiguousarray(found), times.astype(np.int64)).lookup(hashes))
    of_text, of_image = counts
    gone = _GONE.read(run).filter(pc.field("parent") == unit["parent"])["key"]
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
    return chosen(run, unit["name"], rows, verdicts)
