"""Checks of a finished run: its counts add up, its shards match the manifest, and every sample passes every rule.

Samples are read again from tars and side-cars, and everything is measured again: words, tables, URLs, hashes, pixels.
`NOT_ASKED` lists the rules that a finished run cannot be checked for. In a damaged run checks fail; a check that lacks
something it needs has no result.
"""

from functools import partial
from itertools import pairwise

import numpy as np

from altalign.audit.checks import absence, dropped, shard, shards_checked, totals
from altalign.audit.checks.findings import Check, Findings, many
from altalign.audit.checks.rules import Rules
from altalign.audit.checks.totals import Manifest
from altalign.audit.run_folder import RunFolder
from altalign.data import generations, listing
from altalign.data.counts import Counts
from altalign.data.reasons import REASONS, DropReason, Stage
from altalign.errors import AltalignError
from altalign.filters import image
from altalign.machine import processes
from altalign.machine.cores import cores
from altalign.machine.threads import in_threads

__all__ = ["NOT_ASKED", "Check", "check_absence", "run_checks"]

SECONDS_PER_SAMPLE = 0.6e-3  # of one core, about: docs/concepts/speed.md
KEYS_AT_MOST = 1 << 20  # kept keys that are searched for among the dropped rows
FILES_PER_SHARD = 8  # if shards are sampled: files of dropped/STAGE that are read for each shard that is read

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
    absence.CHECK: (
        "file(s) read again, none with a row or a line on what removed.parquet names",
        "`altalign remove` with --removed and the run's own removed.parquet takes it out",
    ),
    "manifest": ("shard(s) by name, and the manifest", _ANEW),
    "digests": ("file(s) by SHA-256", _ANEW),
    "shard_sizes": ("shard(s) with exactly samples_per_shard samples, except the last, and what was taken out", _ANEW),
    "side_cars": ("side-car(s) with all columns, and text in UTF-8", _ANEW),
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
            DropReason.HTTP_TOO_LARGE,
            DropReason.URL_BLOCKED,
            *(rule.name for rule in image.RULES if rule is not image.image_nsfw),
        ),
        _OF_RULE,
    ),
}

# Rules that a finished run cannot be checked for, and why.
NOT_ASKED = {
    "fetching (http_status to http_refused, but http_too_large)": "the servers' answers are not kept",
    image.image_nsfw.name: "the classifier is not part of a run",
    DropReason.NEAR_DUPLICATE_OF_TEST_IMAGE.value: "the test images are not part of a run",
    DropReason.NEAR_DUPLICATE_IN_POOL.value: "it compares all images with each other",
    "size and shape of images that were made smaller": "their original pixels are not part of a run",
    "PDQ hashes of blocked_hashes": "they are computed from the original image as it was decoded when fetched",
}


def run_checks(run: RunFolder, *, shards_at_most: int | None = None) -> list[Check]:
    """Checks a finished run.

    Args:
        run: the run.
        shards_at_most: how many shards to read: of the newest generation first, those with the smallest SHA-256; None:
            all.

    Returns:
        One check for each kind of thing that was looked at, in the order of `ABOUT`. For a run that is damaged or not
        finished, some of them fail.
    """
    findings, notes = Findings(), dict[str, str]()
    manifest = Manifest.read(run, findings)
    totals.check_settings(run, manifest, findings)
    counts = totals.check_counts(run, manifest, findings)
    if manifest.is_there:
        totals.check_listed(run, findings, sizes_alone=shards_at_most is not None)
        if shards_at_most is not None:
            notes["files"] = "sizes alone"
    try:
        rules = Rules.of(run, findings)
    except AltalignError as error:
        findings.fails("settings", str(error))
        return findings.checks(ABOUT, notes)
    if manifest.is_there:
        totals.check_manifest(run, manifest, findings)
        notes |= _check_rows(run, manifest, counts, rules, findings, shards_at_most=shards_at_most)
    return findings.checks(ABOUT, notes)


def check_absence(run: RunFolder) -> list[Check]:
    """Searches every file of a run for what was removed from it; no check where nothing was."""
    findings = Findings()
    absence.check(run, findings)
    return findings.checks(ABOUT, {})


def _check_rows(
    run: RunFolder,
    manifest: Manifest,
    counts: Counts | None,
    rules: Rules,
    findings: Findings,
    *,
    shards_at_most: int | None,
) -> dict[str, str]:
    """Reads shards and dropped rows; returns notes on the checks that pass, by their names."""
    names = _chosen(manifest, shards_at_most)
    rows = sum(manifest.entries[name]["rows"] for name in names)
    bits = max(0, (rows - 1) // KEYS_AT_MOST).bit_length()
    threads = cores()
    read_one = processes.InProcesses(partial(shard.read, rules=rules, threads=threads, bits=bits))
    with (
        shards_checked.counting(len(names)) as one_is_done,
        processes.OF_COMMAND.used(processes.worth(SECONDS_PER_SAMPLE * rows, min(threads, len(names)))),
    ):

        def read(name: str) -> shard.CheckedShard:
            found = read_one(name)
            one_is_done()
            return found

        shards = in_threads(read, names, min(threads, max(1, len(names))))
    for found in shards:
        findings.add(found.findings)
        totals.check_digests(found, manifest, findings)
    _check_between(shards, findings)
    keys = np.concatenate([np.empty(0, "S32"), *(found.keys for found in shards)])
    is_whole = len(names) == len(manifest.entries)
    if counts is not None and is_whole and all(found.rows is not None for found in shards):
        totals.check_against_shards(run, counts, shards, findings)
    if run.config.audit.keep_dropped:
        findings.saw("kept_or_dropped", 0)
        ends = [(found.first.encode(), found.last.encode()) for found in shards if found.rows]
        near = [(shard.leading(first) >> 16, shard.leading(last) >> 16) for first, last in ends]
        files_at_most = None if is_whole else FILES_PER_SHARD * len(names)
        dropped.check(run, counts, keys, findings, files_at_most=files_at_most, near=near)
    return _notes(names, manifest, rows, len(keys))


def _chosen(manifest: Manifest, at_most: int | None) -> list[str]:
    """The shards to read: of the newest generation first, those with the smallest SHA-256; sorted by name."""

    def place(name: str) -> tuple[int, str, str]:
        return -generations.of(name), manifest.entries[name]["sha256"], name

    return sorted(sorted(manifest.entries, key=place)[:at_most])


def _check_between(shards: list[shard.CheckedShard], findings: Findings) -> None:
    """Checks that the last sample of each shard comes before the first of the next one read of its generation."""
    for name in ("order", DropReason.PAIR_REPEATED):
        findings.saw(name, int(any(found.rows for found in shards)))
    for before, after in pairwise(found for found in shards if found.rows):
        if generations.of(before.name) != generations.of(after.name):
            continue
        last, first = (np.array([end.encode()], "S64") for end in (before.last, after.first))
        shard.check_neighbours(last, first, f"shards/{after.name}.parquet", findings)


def _notes(names: list[str], manifest: Manifest, rows: int, kept: int) -> dict[str, str]:
    """Notes on what was read if that was not everything."""
    notes = {"kept_or_dropped": f"searched for {many(kept, 'kept key(s)')}"}
    if len(names) < len(manifest.entries):
        newest = ", of the newest generation first" if len({*map(generations.of, manifest.entries)}) > 1 else ""
        of_all_shards = f"in {len(names):,} of {many(len(manifest.entries), 'shard(s)')}"
        sample = f"{of_all_shards}{newest}, those with the smallest SHA-256"
        of_all = ("settings", "counts", "files", "manifest", "shard_sizes", "dropped_rows", "kept_or_dropped")
        notes |= {name: sample for name in ABOUT if name not in of_all}
        notes["kept_or_dropped"] += f", {sample}, in {FILES_PER_SHARD * len(names):,} files of each stage"
    elif kept < rows:
        notes["kept_or_dropped"] += f" of {rows:,}, by their first bits"
    return notes
