"""Checks of a finished run: its counts add up, its shards match the manifest, and every sample passes every rule.

Samples are read again from tars and side-cars, and everything is measured again: words, tables, URLs, hashes, pixels.
`NOT_ASKED` lists the rules that a finished run cannot be checked for. In a damaged run checks fail; a check that lacks
something it needs has no result.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np
import pyarrow as pa

from altalign import storage, terminal
from altalign.audit.checks import shard, totals
from altalign.audit.checks.findings import Check, Findings, many
from altalign.audit.checks.rules import Rules
from altalign.audit.checks.totals import Manifest
from altalign.audit.run_folder import RunFolder
from altalign.data import generations, listing
from altalign.data.reasons import REASONS, DropReason, Stage
from altalign.data.stages import REMOVED_FILE
from altalign.errors import AltalignError, UnreadableError
from altalign.filters import image
from altalign.machine import interrupts, processes
from altalign.machine.cores import cores
from altalign.machine.threads import in_threads
from altalign.pipelines.change import rows_to_remove
from altalign.pipelines.run import removal_list
from altalign.pipelines.run.removal_list import Request
from altalign.storage import parquet

__all__ = ["NOT_ASKED", "Check", "check_absence", "run_checks"]

SECONDS_PER_SAMPLE = 0.6e-3  # of one core, about: docs/concepts/speed.md
KEYS_AT_MOST = 1 << 20  # kept keys that are searched for among the dropped rows

_ANEW = "`altalign curate` with --rerun write makes it anew"
_CHANGED = (
    "a file was changed, or altalign has a defect: `altalign curate` with --restart makes the run anew; "
    "if it fails again, please report it"
)
_OF_RULE = "sample(s) checked again", _CHANGED

# For each check: what it looks at ("(s)" becomes an s for several), and what to do if it fails.
ABOUT = {
    "settings": (
        "settings file by its digest, and versions",
        "use the altalign that made the run, and restore the config.toml that it wrote",
    ),
    "counts": ("count(s), added up by stage and source and compared with summary.json, manifest and shards", _CHANGED),
    "dropped_rows": ("dropped row(s), as many as the counts say, with those that were removed", _CHANGED),
    "kept_or_dropped": ("dropped row(s), none of a pair that is kept", _CHANGED),
    "files": (
        f"file(s) as {listing.FILE}, manifest and seals say",
        "`altalign curate --repair` makes anew what it can; what nothing lists is not of the run: move it away",
    ),
    "removed": (
        "file(s) read again, none with a row or a line on what removed.parquet names",
        "`altalign remove` with --removed and the run's own removed.parquet takes it out",
    ),
    "manifest": ("shard(s) by name, and the manifest", _ANEW),
    "digests": ("file(s) by SHA-256", _ANEW),
    "shard_sizes": ("shard(s) with exactly samples_per_shard samples, except the last, and what was taken out", _ANEW),
    "side_cars": ("side-car(s) with all columns, and text in UTF-8", _ANEW),
    "image_files": ("row(s) whose column image says what the others say of its place, form and bytes", _ANEW),
    "tars": ("tar(s) read from first byte to last", _ANEW),
    "members": ("sample(s): image, .txt and .json as the side-car says, at its offsets", _ANEW),
    "order": ("sample(s) in the order of (image_id, key)", _ANEW),
    "image_bytes": ("image(s) by SHA-256", _ANEW),
    "image_sizes": ("image(s) decoded: format, width and height as the side-car says", _ANEW),
    "stored_form": ("image(s) stored as [shards] says", _ANEW),
    "image_id": ("image_id(s) computed again from URL or bytes", _CHANGED),
    "key": ("key(s) computed again from image and caption", _CHANGED),
    "image_url": ("URL(s) in their normal form", _CHANGED),
    "source": ("source(s), all in config.toml", _CHANGED),
    "captions": ("caption(s) in their cleaned form", _CHANGED),
    "words": ("word count(s), counted again", _CHANGED),
    **dict.fromkeys(
        (
            *REASONS[Stage.JUDGE],
            DropReason.URL_BLOCKED,
            *(rule.name for rule in image.RULES if rule is not image.image_nsfw),
        ),
        _OF_RULE,
    ),
}

# Rules that a finished run cannot be checked for, and why.
NOT_ASKED = {
    "fetching (http_status to http_refused)": "the servers' answers are not kept",
    image.image_nsfw.name: "the classifier is not part of a run",
    DropReason.NEAR_DUPLICATE_OF_TEST_IMAGE.value: "the test images are not part of a run",
    DropReason.NEAR_DUPLICATE_IN_POOL.value: "it compares all images with each other",
    "size and shape of images that were made smaller": "their original pixels are not part of a run",
    "PDQ hashes of blocked_hashes": "they are computed from the original image as it was decoded when fetched",
}


def run_checks(run: RunFolder, *, shards_at_most: int | None = None, images_at_most: int | None = None) -> list[Check]:
    """One check for each kind of thing that was looked at, in the order of `ABOUT`.

    Of `shards_at_most`, those of the newest generation are read first, then those with the smallest SHA-256; None: all
    are, and what was dropped is read, too. About `images_at_most` of their images are decoded, by their keys; None: all
    are. For a run that is damaged or not finished, some checks fail.
    """
    findings, notes = Findings(), dict[str, str]()
    manifest = Manifest.read(run, findings)
    totals.check_settings(run, manifest, findings)
    counts = totals.check_counts(run, manifest, findings)
    if manifest.facts:
        totals.check_listed(run, findings, sizes_alone=shards_at_most is not None)
        if shards_at_most is not None:
            notes["files"] = "sizes alone"
    try:
        rules = Rules.read(run, findings)
    except AltalignError as error:
        findings.fails("settings", str(error))
        return findings.checks(ABOUT, notes)
    if not manifest.facts:
        return findings.checks(ABOUT, notes)
    totals.check_manifest(run, manifest, findings)
    entries = manifest.entries
    ordered = sorted((-generations.number_of(name), entry["sha256"], name) for name, entry in entries.items())
    names = sorted(name for *_, name in ordered[:shards_at_most])
    rows = sum(entries[name]["rows"] for name in names)
    decoded = rows if images_at_most is None else min(images_at_most, rows)
    shards = _read_shards(names, rows, rules, decoded_below=(decoded << 64) // max(1, rows))
    for each in shards:
        findings.add(each.findings)
    totals.check_shards(shards, manifest, run.config.shards, findings)
    is_whole = len(names) == len(entries)
    if counts is not None and is_whole and all(each.rows is not None for each in shards):
        totals.check_against_shards(run, counts, shards, findings)
    if is_whole and run.config.audit.keep_dropped:
        keys = np.concatenate([np.empty(0, "S32"), *(each.keys for each in shards)])
        findings.saw("kept_or_dropped", 0)
        totals.check_dropped(run, counts, keys, findings)
        notes["kept_or_dropped"] = f"searched for {many(len(keys), 'kept key(s)')}"
    elif not is_whole:
        sample = f"in {len(names):,} of {many(len(entries), 'shard(s)')}, those with the smallest SHA-256"
        of_all = ("settings", "counts", "files", "manifest", "shard_sizes")
        notes |= {name: sample for name in ABOUT if name not in of_all}
    if decoded < rows:
        notes["image_sizes"] = "; ".join(["a sample by keys", *filter(None, [notes.get("image_sizes")])])
    return findings.checks(ABOUT, notes)


def _read_shards(names: Sequence[str], rows: int, rules: Rules, *, decoded_below: int) -> list[shard.CheckedShard]:
    """Checks shards in processes; a bar on a terminal."""
    threads, zeros = cores(), 0
    while rows > KEYS_AT_MOST * 16**zeros:
        zeros += 1
    read_one = processes.InProcesses(
        partial(shard.read, rules=rules, threads=threads, zeros=zeros, decoded_below=decoded_below)
    )
    with processes.OF_COMMAND.used(processes.worth(SECONDS_PER_SAMPLE * rows, min(threads, len(names)))):
        return in_threads(read_one, names, min(threads, max(1, len(names))), bar=("checks", "shards"))


# What was removed -----------------------------------------------------------------------------------------------------


def check_absence(run: RunFolder) -> list[Check]:
    """Reads every file of a run again and looks for what `removed.parquet` names (`altalign audit --full`).

    The tars have what their side-cars have, which the other checks compare; `work/` is deleted by a removal. There is
    no check where nothing was removed.
    """
    findings, path = Findings(), run.path(REMOVED_FILE)
    if not storage.exists(path):
        return []
    request = removal_list.of_run(path)
    of_keys = Request(keys=request.keys)
    for file in terminal.followed(sorted(storage.files_below(run.folder)), "searching", "files"):
        interrupts.check()
        name, number = storage.relative(file, run.folder) or file, 0
        is_table, is_log = name.endswith(".parquet"), name.startswith("log/") and name.endswith(".jsonl")
        if name == REMOVED_FILE or name.startswith("work/") or not (is_table or is_log):
            continue
        findings.saw("removed")
        try:
            for batch in parquet.read_whole(run.path(name)) if is_table else ():
                is_removed = request.matches(pa.Table.from_batches([batch]))
                if "kept_key" in batch.schema.names:  # of such a pair, or dropped for one
                    is_removed |= of_keys.matches(pa.table({"key": batch["kept_key"]}))
                number += int(is_removed.sum())
            lines = storage.read_bytes(run.path(name)).splitlines() if is_log else ()
            # half a line is of a kill
            number += sum(line.endswith(b"}") and rows_to_remove.is_line_of(line, request) for line in lines)
        except (OSError, UnreadableError) as error:
            findings.fails("removed", f"{name}: cannot be read ({error})")
        if number:
            findings.fails("removed", f"{name}: {number:,} of its rows are named by {REMOVED_FILE}")
    return findings.checks(ABOUT, {})
