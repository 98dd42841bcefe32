"""The files of a run by size and digest, and whether they are as they were written.

A finished run lists all that its input and settings decide in `files.jsonl`, but the settings, the data-set card and
the manifest: the card states the number of the run, which is the SHA-256 of that file, and the manifest names settings
and card by digest. So the number stays where settings differ that decide no byte, like the number of workers.
"""

import json
from collections.abc import Callable, Mapping
from functools import cache
from itertools import chain
from typing import NamedTuple

from altalign import storage
from altalign.data.stages import REPORT
from altalign.errors import UnreadableError, UsageError
from altalign.machine import interrupts
from altalign.machine.cores import cores
from altalign.machine.threads import in_threads
from altalign.storage import Written
from altalign.storage.blocks import Kind, begun, kind_of

FILE = "files.jsonl"
SETTINGS = "config.toml"
CARD = ("README.md", "croissant.json")
SURPLUS, MISSING = "nothing lists it", "it is not there"
SEALED = ("manifest.json", "run.json")
# what vouches for the others, and what tells of one making of the run alone
NOT_LISTED = (FILE, SETTINGS, *SEALED, *CARD, *REPORT)
# a trial comes before the data; clusters and scores rest on the shards, and are made afterwards
_NOT_OF_DATA = ("log", "work", "trial", "clusters", "scores")
_AT_ONCE_IN_STORE = 16
_SIZES_A_TASK = 16  # a task for each would take as long as the size


def to_bytes(files: Mapping[str, Written]) -> bytes:
    """A line of JSON a file, sorted by path."""
    lines = ({"path": path, "bytes": each.bytes, "sha256": each.digest} for path, each in sorted(files.items()))
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode()


def read(run_folder: str) -> dict[str, Written]:
    """The listing of a finished run; UnreadableError where it is not there, or not as it was written."""
    path = storage.join(run_folder, FILE)
    try:
        lines = [json.loads(line) for line in storage.read_bytes(path).splitlines()]
        return {line["path"]: Written(line["bytes"], line["sha256"]) for line in lines}
    except FileNotFoundError:
        raise UnreadableError(f"{path}: it is not there") from None
    except (ValueError, KeyError, TypeError) as error:
        raise UnreadableError(f"{path}: no list of files: {error!r}") from None


def digest(path: str, kind: Kind = "SHA-256") -> Written:
    """Size and digest of a file as it is now."""
    so_far, size = begun(kind), 0
    for piece in storage.read_pieces(path):
        interrupts.check()
        so_far.update(piece)
        size += len(piece)
    return Written(size, so_far.hexdigest())


def grown(path: str, kind: Kind) -> Written:
    """The same of a file that grew in pieces; in a store its size alone, for all of it would be fetched again."""
    return Written(storage.stamp(path).size, "") if storage.is_remote(path) else digest(path, kind)


def differences(
    run_folder: str, files: Mapping[str, Written], sizes: Callable[[str], Mapping[str, int]] | None = None
) -> dict[str, str]:
    """What is wrong with each file that is not as it is listed, by its path in the run.

    `sizes` tells those of the files of a folder, where they alone are compared.
    """

    def difference(name: str) -> str:
        path, listed = storage.join(run_folder, name), files[name]
        try:
            size = sizes(storage.folder_of(path)).get(storage.name(path)) if sizes else storage.stamp(path).size
            if size is None:
                return MISSING
            if size != listed.bytes:
                return f"it has {size:,} bytes, where {listed.bytes:,} were written"
            kind = kind_of(listed.digest)
            if not sizes and (now := digest(path, kind).digest) != listed.digest:
                return f"its {kind} is {now}, where {listed.digest} was written"
        except FileNotFoundError:
            return MISSING
        except OSError as error:
            return f"it cannot be read ({error.strerror or error})"
        return ""

    names = sorted(files)
    at_once, of_task = (_AT_ONCE_IN_STORE if storage.is_remote(run_folder) else cores()), _SIZES_A_TASK if sizes else 1
    tasks = [names[begin : begin + of_task] for begin in range(0, len(names), of_task)]
    bar = None if sizes else ("comparing", "files")
    reasons = chain.from_iterable(in_threads(lambda task: [*map(difference, task)], tasks, at_once, bar=bar))
    return {name: wrong for name, wrong in zip(names, reasons, strict=True) if wrong}


# A finished run -------------------------------------------------------------------------------------------------------


class Found(NamedTuple):
    """How many files were looked at, and what is wrong with which, by their paths in the run."""

    files: int
    wrong: Mapping[str, str]


def number(run_folder: str) -> str:
    """The number of a finished run, which stands for all its files: SHA-256 of their list, as the manifest has it."""
    named = storage.read_json(storage.join(run_folder, "manifest.json")).get("files")
    if not isinstance(named, dict) or not isinstance(named.get("sha256"), str):
        raise UsageError(
            f"{run_folder}: its manifest names no list of files; `altalign curate` with --rerun write writes it anew"
        )
    return named["sha256"]


def look(run_folder: str, *, sizes_alone: bool, but_of_rows: bool = False) -> Found:
    """Compare the files of a finished run with what its manifest, its list and its seals say of them.

    With `sizes_alone`, no bytes are read but those of small files that vouch for others; with `but_of_rows`, the bytes
    of shards are left to the checks of their rows.
    """
    wrong = dict[str, str]()
    for name in SEALED:
        path = storage.join(run_folder, name)
        try:
            wrong |= {} if storage.read_sealed(path) else {name: MISSING}
        except UnreadableError as error:
            wrong[name] = str(error).removeprefix(f"{path}: ")
    try:
        facts = storage.read_json(storage.join(run_folder, "manifest.json"))
        small = {FILE: Written(facts["files"]["bytes"], facts["files"]["sha256"])}
        listed = read(run_folder)
    except (KeyError, TypeError):
        return Found(len(SEALED), {**wrong, "manifest.json": f"it names no {FILE}"})
    except UnreadableError as error:
        name, _, why = str(error).removeprefix(f"{run_folder}/").partition(": ")
        return Found(len(SEALED), {**wrong, name: why})
    # settings and card by the manifest, which has no sizes of them
    for name, named in {**(facts.get("card") or dict.fromkeys(CARD)), SETTINGS: facts.get("settings_sha256")}.items():
        path = storage.join(run_folder, name)
        small[name] = Written(storage.stamp(path).size if storage.exists(path) else 0, str(named))
    of_rows = {name: each for name, each in listed.items() if but_of_rows and name.startswith("shards/")}
    others = {name: each for name, each in listed.items() if name not in of_rows}
    for name in storage.entries(storage.join(run_folder, "scores")):
        from altalign.data import scores  # Arrow, which `--help` of the verbs that list files need not wait for

        folder = f"{scores.FOLDER}/{name}"
        try:
            score = scores.opened(run_folder, name)
            for shard, each in score.files.items() if score else ():
                others[f"{folder}/{shard}.parquet"] = Written(each["bytes"], each["sha256"])
        except UnreadableError as error:
            wrong[f"{folder}/manifest.json"] = str(error).partition("manifest.json: ")[2]
    sizes = cache(storage.sizes)
    for files, is_of_sizes in ((small, False), (of_rows, True), (others, sizes_alone)):
        wrong |= differences(run_folder, files, sizes if is_of_sizes else None)
    # what nothing lists is somebody else's; names that begin with a point are not looked at
    existing = {storage.relative(path, run_folder) or path for path in storage.files_below(run_folder)}
    for name in sorted(existing.difference(listed, NOT_LISTED)):
        if name.split("/")[0] not in _NOT_OF_DATA and not name.startswith("."):
            wrong[name] = SURPLUS
    return Found(len(SEALED) + len(small) + len(of_rows) + len(others), wrong)
