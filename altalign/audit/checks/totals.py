"""Checks of a run as a whole: counts.parquet, summary.json, the manifest, and the files that exist."""

import hashlib
import re
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypedDict

from altalign import storage
from altalign.audit import database, removed, run_parquet
from altalign.audit.checks.findings import Findings
from altalign.audit.checks.shard import CheckedShard
from altalign.audit.run_folder import RunFolder
from altalign.data import generations, listing
from altalign.data.counts import Counts
from altalign.data.reasons import KEPT, DropReason
from altalign.data.schema import COUNTS, RULES_VERSION, SCHEMA_VERSION
from altalign.errors import AltalignError, UnreadableError

_NAME = re.compile(r"(g[0-9]{4,}-)?[0-9]{5,}\.tar")
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

    facts: dict[str, Any] = field(default_factory=dict)
    entries: dict[str, Entry] = field(default_factory=dict)

    @property
    def is_there(self) -> bool:
        """Whether it could be read."""
        return bool(self.facts)

    @property
    def is_grown(self) -> bool:
        """Whether an addition has changed shards: then any may have fewer samples, and there may be several orders."""
        return generations.in_manifest(self.facts) > 1

    @classmethod
    def read(cls, run: RunFolder, findings: Findings) -> "Manifest":
        """Reads the manifest; if that fails, its check fails and the manifest is empty."""
        findings.saw("manifest")
        try:
            facts = storage.read_json(run.path("manifest.json"))
        except (UnreadableError, OSError) as error:
            findings.fails("manifest", f"manifest.json: {_reason(error)}")
            return cls()
        shards = facts.get("shards")
        if not facts:
            findings.fails("manifest", "manifest.json: it is missing, so the run is not finished")
        elif not (
            isinstance(shards, list)
            and all(_is_entry(entry) for entry in shards)
            and isinstance(facts.get("pairs"), int)
        ):
            findings.fails(
                "manifest", f"manifest.json: it lacks pairs, or shards (each with {', '.join(Entry.__annotations__)})"
            )
        else:
            return cls(facts, {entry["name"].removesuffix(".tar"): entry for entry in shards})
        return cls()


def _is_entry(entry: object) -> bool:
    return (
        isinstance(entry, dict)
        and all(isinstance(entry.get(name), kind) for name, kind in Entry.__annotations__.items())
        and bool(_NAME.fullmatch(entry["name"]))
    )


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error).rpartition(": ")[2]


# The files that are there ---------------------------------------------------------------------------------------------


def check_listed(run: RunFolder, findings: Findings, *, sizes_alone: bool) -> None:
    """Compares every file with the list of all: changed, missing and surplus ones; those of rows by size alone.

    Other checks read the bytes of rows. A run of an earlier version, which has no list, is not checked.
    """
    if "files" not in storage.read_json(run.path("manifest.json")) and not storage.exists(run.path(listing.FILE)):
        return
    files, wrong = listing.look(run.folder, sizes_alone=sizes_alone, but_of_rows=True)
    findings.saw("files", files)
    for name, why in sorted(wrong.items()):
        findings.fails("files", f"{name}: {why}")


def check_manifest(run: RunFolder, manifest: Manifest, findings: Findings) -> None:
    """Checks that the names of shards count up, all but the last are full, and their rows are the run's pairs."""
    _, removed_from = removed.pairs(run)
    _check_names(manifest, removed_from, findings)
    rows, full = [entry["rows"] for entry in manifest.entries.values()], run.config.shards.samples_per_shard
    findings.saw("manifest", len(rows))
    findings.saw("shard_sizes", len(rows))
    for number, (name, entry) in enumerate(manifest.entries.items()):
        may_be_short = manifest.is_grown or number == len(rows) - 1 or full <= entry["rows"] + removed_from[name]
        if not (entry["rows"] == full or (may_be_short and 0 < entry["rows"] < full)):
            said = f"{entry['rows']:,} samples, [shards] samples_per_shard = {full:,}"
            findings.fails("shard_sizes", f"manifest.json: {name}.tar has {said}")
    if manifest.facts["pairs"] != sum(rows):
        findings.fails("manifest", f"manifest.json: pairs = {manifest.facts['pairs']:,}, its shards have {sum(rows):,}")


def _check_names(manifest: Manifest, removed_from: Mapping[str, int], findings: Findings) -> None:
    """Checks that the names of shards count up, but for those of which nothing was left."""
    if manifest.is_grown:
        places = [(generations.of(name), int(name.rpartition("-")[2])) for name in manifest.entries]
        for name, before, after in zip([*manifest.entries][1:], places, places[1:], strict=False):
            if before >= after:
                findings.fails("manifest", f"manifest.json: {name}.tar comes after a later shard")
        return
    number = 0
    for name in manifest.entries:
        while name != f"{number:05d}" and removed_from[f"{number:05d}"]:  # nothing was left of that one
            number += 1
        if name != f"{number:05d}":
            findings.fails("manifest", f"manifest.json: shard {number} is named {name!r}, not {number:05d}.tar")
        number += 1


def check_settings(run: RunFolder, manifest: Manifest, findings: Findings) -> None:
    """Checks config.toml by its digest, and that the rules and schema are of this version."""
    findings.saw("settings")
    try:
        digest = hashlib.sha256(storage.read_bytes(run.path("config.toml"))).hexdigest()
    except OSError as error:
        findings.fails("settings", f"config.toml: {error.strerror}")
        return
    if manifest.is_there and digest != (said := manifest.facts.get("settings_sha256")):
        findings.fails("settings", f"config.toml: its SHA-256 is {digest}, the manifest says {said}")
    for name, here in (("rules_version", RULES_VERSION), ("schema_version", SCHEMA_VERSION)):
        if manifest.is_there and (there := manifest.facts.get(name)) != here:
            findings.fails("settings", f"manifest.json: {name} = {there!r}, but this altalign checks by {here!r}")


def check_digests(found: CheckedShard, manifest: Manifest, findings: Findings) -> None:
    """Compares what was read of a shard with its entry in the manifest."""
    entry, name = manifest.entries.get(found.name), f"shards/{found.name}"
    if entry is None:
        return
    findings.saw("digests", 2)
    if found.bytes is not None and found.sha256 != entry["sha256"]:
        findings.fails("digests", f"{name}.tar: its SHA-256 is {found.sha256}, the manifest says {entry['sha256']}")
    if found.parquet_sha256 and found.parquet_sha256 != entry["parquet_sha256"]:
        said = f"its SHA-256 is {found.parquet_sha256}, the manifest says {entry['parquet_sha256']}"
        findings.fails("digests", f"{name}.parquet: {said}")
    if found.rows is not None and found.rows != entry["rows"]:
        findings.fails("shard_sizes", f"{name}.parquet: {found.rows:,} rows, the manifest says {entry['rows']:,}")


# Counts ---------------------------------------------------------------------------------------------------------------


def check_counts(run: RunFolder, manifest: Manifest, findings: Findings) -> Counts | None:
    """Checks that counts.parquet adds up and agrees with summary.json and the manifest.

    Returns:
        The counts; None if they cannot be read.
    """
    try:
        groups = run_parquet.row_groups(run.path("counts.parquet"), COUNTS.names)
        rows = [row for group in groups for row in group.to_pylist()]
        for row in rows:
            if not isinstance(row["rows"], int) or row["rows"] <= 0:
                said = f"rows = {row['rows']!r} of {row['stage']}, {row['reason']}"
                raise UnreadableError(f"counts.parquet: {said}")
        counts = Counts.from_json([[row[name] for name in COUNTS.names] for row in rows])
    except (AltalignError, ValueError, OSError) as error:
        findings.saw("counts")
        findings.fails("counts", f"counts.parquet: {_reason(error)}")
        return None
    findings.saw("counts", len(rows))
    try:
        counts.reconcile(counts.stages_of_run(), pairs=manifest.facts.get("pairs"))
    except AltalignError as error:
        findings.fails("counts", f"counts.parquet: {str(error).partition('; ')[0]}")
    _check_summary(run, manifest, counts, findings)
    return counts


def _check_summary(run: RunFolder, manifest: Manifest, counts: Counts, findings: Findings) -> None:
    try:
        summary = storage.read_json(run.path("summary.json"))
    except (UnreadableError, OSError) as error:
        findings.fails("counts", f"summary.json: {_reason(error)}")
        return
    stages = counts.summary(counts.stages_of_run())
    said = summary.get("stages")
    said = said if isinstance(said, list) else []
    for number, stage in enumerate(stages):
        mine = said[number] if number < len(said) else "missing"
        if mine != stage:
            findings.fails("counts", f"summary.json: {stage['stage']} is {mine}, counts.parquet says {stage}")
    source, wanted = "manifest" if manifest.is_there else "counts", {"pairs": counts.kept(counts.stages_of_run()[-1])}
    if manifest.is_there:
        of_tars = sum(entry["bytes"] for entry in manifest.entries.values())
        wanted |= {"pairs": manifest.facts["pairs"], "bytes": of_tars}
    with suppress(UnreadableError):  # another check reports it
        found = storage.read_json(run.path("audit", "near_duplicates", "found.json"))
        if found != summary.get("near_duplicates", {}):
            findings.fails("counts", "summary.json: near_duplicates differs from audit/near_duplicates/found.json")
    for name, value in wanted.items():
        if summary.get(name) != value:
            findings.fails("counts", f"summary.json: {name} = {summary.get(name)!r}, the {source} has {value:,}")


def check_against_shards(run: RunFolder, counts: Counts, shards: list[CheckedShard], findings: Findings) -> None:
    """Compares the counts with the shards, if all were read: samples of each source, and distinct images."""
    last = counts.stages_of_run()[-1].value
    kept = {source: rows for stage, source, reason, rows in counts.to_json() if (stage, reason) == (last, KEPT)}
    in_shards = sum((found.by_source for found in shards), Counter[str]())
    findings.saw("counts", len(kept))
    for source in sorted(kept.keys() | in_shards.keys()):
        if kept.get(source, 0) != in_shards[source]:
            said = f"{kept.get(source, 0):,} pairs of {source!r} are kept, the shards have {in_shards[source]:,}"
            findings.fails("counts", f"counts.parquet: {said}")
    images = _images(run, shards, findings)
    with suppress(UnreadableError):  # reported already
        said = storage.read_json(run.path("summary.json")).get("images")
        if said != images:
            findings.fails("counts", f"summary.json: images = {said!r}, the shards have {images:,}")


def _images(run: RunFolder, shards: list[CheckedShard], findings: Findings) -> int:
    """How many images the shards have, one that is in several generations once; checks that no key is in two."""
    if all(generations.of(found.name) == 1 for found in shards):
        shared = sum(before.last[:32] == after.first[:32] for before, after in pairwise(shards) if before.last)
        return sum(found.images for found in shards) - shared
    with database.opened() as connection:
        connection.execute("create table samples (shard varchar, key varchar, image_id varchar)")
        for found in shards:
            for rows in run_parquet.row_groups(run.path("shards", f"{found.name}.parquet"), ["key", "image_id"]):
                insert = "insert into samples select ?, key, image_id from arrow_rows"
                database.execute_on(connection, rows, insert, [found.name])
        for shard, key in database.rows_of_query(connection, _SAME_KEYS):
            findings.fails(DropReason.PAIR_REPEATED, f"shards/{shard}.parquet: {key}: the same key in another shard")
        ((images,),) = database.rows_of_query(connection, "select count(distinct image_id) from samples")
        return images
