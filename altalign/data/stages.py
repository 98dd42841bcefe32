"""The stages of a curation, what each leaves in a run folder, and the error for a damaged file."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NotRequired, TypedDict

from altalign import storage
from altalign.errors import AltalignError, DamagedError, UnreadableError, UsageError


class StageRecord(TypedDict):
    """What run.json says of a stage that has begun: what it rests on, and its tries."""

    digest: str  # of `reads`, and of those of all stages before
    reads: dict[str, object]
    attempts: int
    started: str
    finished: str | None
    seconds: float


class RunRecord(TypedDict):
    """The content of run.json."""

    altalign: str
    schema_version: int
    rules_version: str
    engine: dict[str, object]
    machine: str
    stages: dict[str, StageRecord]
    files: NotRequired[dict[str, list[int | str]]]  # stamps of the input files, by path


STAGES = ("extract", "tables", "judge", "fetch", "decontaminate", "write")
SELECT = "select"  # the stage of a run that was made of other runs, and has no other

# of the run as it is; `altalign audit` writes it, the next rerun takes it away
REPORT = ("report.html", "audit/checks.json", "audit/report.json")

# What each stage leaves outside work/: a folder, or a file.
OUTPUTS = {
    "extract": ("dropped/extract",),
    "tables": ("tables", "audit/histograms.json"),
    "judge": (
        "dropped/judge",
        "audit/text_measures.parquet",
        "audit/frequent.parquet",
        "audit/edge_ngrams.parquet",
        "audit/scripts.parquet",
    ),
    "fetch": (
        "dropped/fetch",
        "dropped/image",
        "audit/image_measures.parquet",
        "audit/image_values.parquet",
        "audit/hosts.parquet",
    ),
    "decontaminate": ("dropped/decontaminate", "audit/near_duplicates"),
    "write": (
        "shards",
        "clusters",  # by `altalign score --clusters`, of the shards as they are
        "audit/failed.parquet",
        "audit/funnel.parquet",
        "audit/dropped_images.parquet",
        "audit/samples.parquet",
        "counts.parquet",
        "summary.json",
        "README.md",
        "croissant.json",
        *REPORT,
    ),
}
# in work/: what rests on no later stage than fetch, and stays when those are run anew
OF_FETCHED = ("test_images",)
_WRITTEN_AT_THE_END = ("manifest.json", "config.toml")  # the second is written anew whenever the first is not there

REMOVED_FILE = "removed.parquet"  # what `altalign remove` has taken out: schema.REMOVED


def damaged(run_folder: str, path: str, why: str) -> DamagedError:
    """The error about a file that a run wrote and that is not as it was written, with what makes it anew."""
    name = storage.relative(path, run_folder) or path
    path, stage = f"{run_folder.rstrip('/')}/{name}", maker(name)
    if is_made_of_others(run_folder):
        return DamagedError(f"{path}: damaged: {why}; delete the run, and make it again of the run that it was made of")
    repair = f"--rerun {stage} makes it anew" if stage else "--restart runs everything anew"
    return DamagedError(f"{path}: damaged: {why}; `altalign curate` with {repair}")


def is_made_of_others(run_folder: str) -> bool:
    """Whether a run was made of other runs, so that no curation can go on with it."""
    with suppress(AltalignError, OSError):
        return SELECT in storage.read_json(storage.join(run_folder, "run.json")).get("stages", {})
    return False


def check_curated(run_folder: str) -> None:
    """Refuse a run that was made of other runs."""
    if is_made_of_others(run_folder):
        raise UsageError(f"{run_folder}: made of another run, not by a curation; do that to the run it was made of")


@contextmanager
def own_files(run_folder: str) -> Iterator[None]:
    """Around code that reads a run: an error about a file in its folder becomes a DamagedError with its repair."""
    try:
        yield
    except UnreadableError as error:
        parts = str(error).split(": ")  # PATH: WHY; and either may have colons of its own
        paths = ((at, ": ".join(parts[:at])) for at in range(1, len(parts)))
        named = next((at for at, path in paths if storage.relative(path, run_folder) is not None), None)
        if named is None:
            raise
        raise damaged(run_folder, ": ".join(parts[:named]), ": ".join(parts[named:]).split("; repair")[0]) from error
    except FileNotFoundError as error:
        if error.filename is None or storage.relative(str(error.filename), run_folder) is None:
            raise
        raise damaged(run_folder, str(error.filename), "it is not there") from error


def maker(path: str) -> str | None:
    """The stage that writes a file, by its path inside the run; None of what no stage alone writes."""
    first, second, *_ = [*path.split("/"), ""]
    if first == "work":
        return second if second in STAGES else "fetch" if second in OF_FETCHED else None
    if path in _WRITTEN_AT_THE_END:
        return STAGES[-1]
    made = ((stage, output) for stage, outputs in OUTPUTS.items() for output in outputs)
    return next((stage for stage, output in made if f"{path}/".startswith(f"{output}/")), None)
