"""Checks of a run as a whole: settings, counts, the manifest, the files that exist, dropped rows beside kept pairs."""

import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from altalign import storage
from altalign.audit import rows
from altalign.audit.checks.findings import Findings
from altalign.audit.checks.shard import CheckedShard, check_neighbours
from altalign.audit.run_folder import RunFolder
from altalign.data import generations, listing
from altalign.data.counts import Counts
from altalign.data.lineage import is_merged
from altalign.data.reasons import KEPT, DropReason, Stage
from altalign.data.schema import COUNTS, RULES_VERSION, SCHEMA_VERSION
from altalign.errors import AltalignError, CountsError, UnreadableError
from altalign.machine import interrupts
from altalign.settings.curate import ShardsSettings

_NAME = re.compile(r"(g[0-9]{4,}-)?[0-9]{5,}\.tar")
_OF_ANOTHER_RUN = re.compile(r"[0-9a-f]{8}-")  # what a file of another run's rows begins with
_SAME_KEYS = "select max(shard), key from samples group by key having count(distinct shard) > 1 order by key limit 100"


class Entry(TypedDict):
    """What the manifest says of a shard."""

    name: str
    rows: int
    bytes: int
    sha256: str
    parquet_sha256: str


@dataclass(frozen=True)
class Manifest:
    """The content of the manifest: its facts, and its entries by the shards' names (without an ending)."""

    facts: dict[str, Any] = field(default_factory=dict)  # empty: it could not be read
    entries: dict[str, Entry] = field(default_factory=dict)

    @classmethod
    def read(cls, run: RunFolder, findings: Findings) -> "Manifest":
        """Reads the manifest; if that fails, its check fails and the manifest is empty."""

        def is_entry(entry: Any) -> bool:
            kinds = Entry.__annotations__.items()
            is_whole = isinstance(entry, dict) and all(isinstance(entry.get(name), kind) for name, kind in kinds)
            return is_whole and bool(_NAME.fullmatch(entry["name"]))

        findings.saw("manifest")
        try:
            facts = run.json("manifest.json")
        except (UnreadableError, OSError) as error:
            findings.fails("manifest", f"manifest.json: {_reason(error)}")
            return cls()
        shards = facts.get("shards")
        if isinstance(shards, list) and all(map(is_entry, shards)) and isinstance(facts.get("pairs"), int):
            return cls(facts, {entry["name"].removesuffix(".tar"): entry for entry in shards})
        why = f"it lacks pairs, or shards (each with {', '.join(Entry.__annotations__)})"
        findings.fails("manifest", f"manifest.json: {why if facts else 'it is missing, so the run is not finished'}")
        return cls()


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error).rpartition(": ")[2]


# The files that are there ---------------------------------------------------------------------------------------------


def check_settings(run: RunFolder, manifest: Manifest, findings: Findings) -> None:
    """Checks config.toml by its digest, and that the rules and schema are of this version."""
    findings.saw("settings")
    try:
        digest = hashlib.sha256(storage.read_bytes(run.path("config.toml"))).hexdigest()
    except OSError as error:
        findings.fails("settings", f"config.toml: {error.strerror}")
        return
    if not manifest.facts:
        return
    if digest != (noted := manifest.facts.get("settings_sha256")):
        findings.fails("settings", f"config.toml: its SHA-256 is {digest}, the manifest says {noted}")
    for name, here in (("rules_version", RULES_VERSION), ("schema_version", SCHEMA_VERSION)):
        if (noted := manifest.facts.get(name)) != here:
            findings.fails("settings", f"manifest.json: {name} = {noted!r}, but this altalign checks by {here!r}")


def check_listed(run: RunFolder, findings: Findings, *, sizes_alone: bool) -> None:
    """Compares every file with the list of all: changed, missing and surplus ones; those of rows by size alone.

    Other checks read the bytes of rows.
    """
    files, wrong = listing.look(run.folder, sizes_alone=sizes_alone, but_of_rows=True)
    findings.saw("files", files)
    for name, why in sorted(wrong.items()):
        findings.fails("files", f"{name}: {why}")


def check_manifest(run: RunFolder, manifest: Manifest, findings: Findings) -> None:
    """Checks that the names of shards rise, all but the last are full, and their rows are the run's pairs.

    After an addition any may have fewer samples; of what was removed nothing may be left of a shard.
    """
    _, removed_from = rows.removed_pairs(run)
    entries, is_grown = manifest.entries, generations.in_manifest(manifest.facts) > 1
    full, last = run.config.shards.samples_per_shard, next(reversed(entries), "")
    is_whole = run.config.shards.captions == "all"  # then rows are not samples
    findings.saw("manifest", len(entries))
    findings.saw("shard_sizes", len(entries))
    places = {name: (generations.number_of(name), int(name.rpartition("-")[2])) for name in entries}
    for before, name in pairwise(entries):
        if places[before] >= places[name]:
            findings.fails("manifest", f"manifest.json: {name}.tar comes after a later shard")
    for name, entry in entries.items():
        may_be_short = is_grown or name == last or full <= entry["rows"] + removed_from[name]
        is_full = entry["rows"] >= full if is_whole else entry["rows"] == full
        if not (is_full or (may_be_short and 0 < entry["rows"] < full)):
            why = f"{entry['rows']:,} samples, [shards] samples_per_shard = {full:,}"
            findings.fails("shard_sizes", f"manifest.json: {name}.tar has {why}")
    if manifest.facts["pairs"] != (pairs := sum(entry["rows"] for entry in entries.values())):
        why = f"pairs = {manifest.facts['pairs']:,}, its shards have {pairs:,}"
        findings.fails("manifest", f"manifest.json: {why}")


def check_shards(
    shards: Sequence[CheckedShard], manifest: Manifest, settings: ShardsSettings, findings: Findings
) -> None:
    """Compares shards with the manifest, and the last sample of each with the first of the next of its generation."""
    is_whole, full_size = settings.captions == "all", settings.samples_per_shard
    for shard in shards:
        entry, name = manifest.entries[shard.name], f"shards/{shard.name}"
        findings.saw("digests", 2)
        both = (("tar", shard.sha256, entry["sha256"]), ("parquet", shard.parquet_sha256, entry["parquet_sha256"]))
        for ending, digest, noted in both:
            if digest and digest != noted:
                findings.fails("digests", f"{name}.{ending}: its SHA-256 is {digest}, the manifest says {noted}")
        if shard.rows is not None and shard.rows != entry["rows"]:
            findings.fails("shard_sizes", f"{name}.parquet: {shard.rows:,} rows, the manifest says {entry['rows']:,}")
        if is_whole and shard.images > full_size:
            why = f"{shard.images:,} images, [shards] samples_per_shard = {full_size:,}"
            findings.fails("shard_sizes", f"{name}.parquet: {why}")
    full = [each for each in shards if each.rows]
    for name in ("order", DropReason.PAIR_REPEATED):
        findings.saw(name, int(bool(full)))
    for before, after in pairwise(full):
        if generations.number_of(before.name) == generations.number_of(after.name):
            last, first = (np.array([end], "S64") for end in (before.last, after.first))
            check_neighbours(last, first, f"shards/{after.name}.parquet", findings)
            if is_whole and before.last[:32] == after.first[:32]:
                findings.fails("members", f"shards/{after.name}.tar: captions of its first image are in {before.name}")


# Counts ---------------------------------------------------------------------------------------------------------------


def check_counts(run: RunFolder, manifest: Manifest, findings: Findings) -> Counts | None:
    """Checks that counts add up and agree with summary.json and the manifest; returns them, None if unreadable."""
    try:
        entries = rows.table(run.path("counts.parquet"), COUNTS).to_pylist()
        if wrong := [row for row in entries if not (row["rows"] or 0) > 0]:
            raise UnreadableError("counts.parquet: rows = {rows} of {stage}, {reason}".format(**wrong[0]))
        counts = Counts.from_json([*row.values()] for row in entries)
        findings.saw("counts", len(entries))
        stages = counts.stages_of_run()
        try:
            counts.reconcile(stages, pairs=manifest.facts.get("pairs"))
        except CountsError as error:
            findings.fails("counts", f"counts.parquet: {str(error).partition('; ')[0]}")
    except (AltalignError, ValueError, OSError) as error:
        findings.fails("counts", f"counts.parquet: {_reason(error)}")
        return None
    try:
        summary = run.json("summary.json")
    except (UnreadableError, OSError) as error:
        findings.fails("counts", f"summary.json: {_reason(error)}")
        return counts
    expected: dict[str, Any] = {"stages": counts.summary(stages), "pairs": counts.kept(stages[-1])}
    with suppress(UnreadableError):  # another check reports it
        expected["near_duplicates"] = run.json("audit", "near_duplicates", "found.json")
    if manifest.facts:
        expected["bytes"] = sum(entry["bytes"] for entry in manifest.entries.values())
    for name, value in expected.items():
        if (noted := summary.get(name, {} if name == "near_duplicates" else None)) != value:
            findings.fails("counts", f"summary.json: {name} = {noted!r}, counts, manifest and audit say {value!r}")
    return counts


def check_against_shards(run: RunFolder, counts: Counts, shards: list[CheckedShard], findings: Findings) -> None:
    """Compares the counts with the shards, if all were read: samples of each source, and distinct images."""
    last = counts.stages_of_run()[-1].value
    kept = {source: number for stage, source, reason, number in counts.to_json() if (stage, reason) == (last, KEPT)}
    in_shards = sum((shard.by_source for shard in shards), Counter[str]())
    findings.saw("counts", len(kept))
    for source in sorted(kept.keys() | in_shards.keys()):
        if kept.get(source, 0) != in_shards[source]:
            why = f"{kept.get(source, 0):,} pairs of {source!r} are kept, the shards have {in_shards[source]:,}"
            findings.fails("counts", f"counts.parquet: {why}")
    images = _images(run, shards, findings)
    with suppress(UnreadableError):  # reported already
        if (noted := run.json("summary.json").get("images")) != images:
            findings.fails("counts", f"summary.json: images = {noted!r}, the shards have {images:,}")


def _images(run: RunFolder, shards: list[CheckedShard], findings: Findings) -> int:
    """How many images the shards have, one that is in several generations once; checks that no key is in two."""
    if all(generations.number_of(shard.name) == 1 for shard in shards):
        shared = sum(before.last[:32] == after.first[:32] for before, after in pairwise(shards) if before.last)
        return sum(shard.images for shard in shards) - shared
    with rows.database() as connection:
        connection.execute("create table samples (shard varchar, key varchar, image_id varchar)")
        for shard in shards:
            for group in rows.row_groups(run.path("shards", f"{shard.name}.parquet"), ["key", "image_id"]):
                insert = "insert into samples select ?, key, image_id from arrow_rows"
                rows.execute_on(connection, group, insert, [shard.name])
        for name, key in rows.rows_of_query(connection, _SAME_KEYS):
            findings.fails(DropReason.PAIR_REPEATED, f"shards/{name}.parquet: {key}: the same key in another shard")
        ((images,),) = rows.rows_of_query(connection, "select count(distinct image_id) from samples")
        return images


# Dropped rows ---------------------------------------------------------------------------------------------------------


def check_dropped(run: RunFolder, counts: Counts | None, kept: npt.NDArray[np.bytes_], findings: Findings) -> None:
    """Reads dropped/ once: checks that its rows add up to the counts, and that no kept key (S32[n]) is among them.

    A kept key may be dropped for one reason only, `pair_repeated`: those rows are the same pair once more. Of runs that
    were merged, one may have dropped what another has kept.
    """
    keys, (seen, _), merged = pa.array(kept.tolist(), pa.binary()), rows.removed_pairs(run), is_merged(run.folder)
    for stage in Stage:
        for name in storage.names(run.path("dropped", stage.value), ".parquet"):
            interrupts.check()
            path = f"dropped/{stage.value}/{name}"
            of_ancestor = merged and (stage is not Stage.SELECT or bool(_OF_ANOTHER_RUN.match(name)))
            try:
                for group in rows.row_groups(run.path(*path.split("/")), ("key", "stage", "source", "reason")):
                    group.validate(full=True)
                    counted = group.group_by(["stage", "source", "reason"], use_threads=False)
                    for entry in counted.aggregate([([], "count_all")]).to_pylist():
                        seen[str(entry["stage"]), str(entry["source"]), str(entry["reason"])] += entry["count_all"]
                    if stage is not Stage.EXTRACT and not of_ancestor:
                        others = group.filter(pc.field("reason") != DropReason.PAIR_REPEATED.value)["key"].drop_null()
                        is_kept: Any = pc.is_in(others.cast(pa.binary()), value_set=keys)
                        findings.rows(
                            "kept_or_dropped",
                            is_kept.to_numpy(),
                            lambda _, path=path: path,
                            lambda row, others=others: f"{others[row].as_py()} is dropped, and is in a shard",
                        )
            except UnreadableError as error:
                findings.fails("dropped_rows", str(error).replace(run.path(path), path))
            except (pa.ArrowException, OSError) as error:
                findings.fails("dropped_rows", f"{path}: {error}")
    if counts is None:
        return
    counted = {(stage, source, reason): number for stage, source, reason, number in counts.to_json() if reason != KEPT}
    for stage, source, reason in sorted(counted.keys() | seen.keys()):
        number, by_counts = seen[stage, source, reason], counted.get((stage, source, reason), 0)
        findings.saw("dropped_rows", number)
        # of what extract drops, only broken records are all kept; of the rest, a sample is
        is_sample = stage == Stage.EXTRACT.value and reason != DropReason.RECORD_BROKEN.value
        if number > by_counts or (number < by_counts and not is_sample):
            why = f"{number:,} rows of {source!r} as {reason}, but counts.parquet says {by_counts:,}"
            findings.fails("dropped_rows", f"dropped/{stage}: {why}")
