"""Refuses, before any work, inputs from which no image can come, and tables of other runs that cannot be used."""

from collections.abc import Sequence

from altalign import storage
from altalign.data.schema import RULES_VERSION
from altalign.errors import UnreadableError, UsageError
from altalign.filters import identity
from altalign.pipelines import read
from altalign.pipelines.run.sampled import Grown
from altalign.pipelines.run.units import Run
from altalign.settings.curate import OWN_TABLES, InputSettings
from altalign.terminal import shown

SAMPLED_FILES = 8  # of an input, spread over its list


def check_images(run: Run) -> None:
    """Look for an input that can hold images; of archives, in a sample of their records.

    Raises:
        UsageError: there is none, so that every pair would end as not_in_archive.
    """
    why = []
    for number, settings in enumerate(run.config.input):
        paths = [file.path for file in run.files if file.of == number]
        step = max(1, -(-len(paths) // SAMPLED_FILES))
        without = _without_images(paths[::step], settings)
        if not without:
            return
        why.append(f"{shown(settings.source)}: {without}")
    raise UsageError(
        f'no image can come of these inputs ({"; ".join(why)}), where [fetch] source = "archive" takes images from '
        'them alone; set fetch.source = "web" to fetch them by URL, or stop before that with --until judge'
    )


def named_tables(run: Run) -> str:
    """The folder of the tables that `[text] tables` names, empty where it names none; `own`: those from before."""
    if run.config.text.tables != OWN_TABLES:
        return run.config.text.tables
    return storage.join(run.before if isinstance(run, Grown) else run.folder, "tables")


def check_tables(run: Run) -> None:
    """Look at the tables that `[text] tables` names.

    Raises:
        UsageError: they are not there, or of other rules or limits.
    """
    folder = named_tables(run)
    limits = {
        "vocabulary": {},
        "over_shared_texts": {"threshold": run.config.text.images_per_text_at_most},
        "over_captioned_images": {"threshold": run.config.image.texts_per_image_at_most},
    }
    for name, limit in limits.items() if folder else ():
        try:
            facts = storage.read_json(path := storage.join(folder, f"{name}.json"))
        except UnreadableError as error:
            raise UsageError(f"text.tables = {folder!r}: {error}") from None
        if not facts:
            repair = "give the folder `tables` of a run whose texts are judged"
            raise UsageError(f"text.tables = {folder!r}: {path} is not there; {repair}")
        wanted = {"rules_version": RULES_VERSION, "hash_versions": identity.HASH_VERSIONS, **limit}
        for key, value in wanted.items():
            if facts.get(key) != value:
                raise UsageError(f"text.tables = {folder!r}: {name}.json has {key} = {facts.get(key)!r}, not {value!r}")


def _without_images(paths: Sequence[str], settings: InputSettings) -> str:
    """Why no image can come of an input; empty where one can."""
    match settings.kind:
        case "webdataset" | "folder":
            return ""
        case "table":
            return "" if settings.image_column else "a table without [input] image_column"
        case "wat":
            return "WAT files hold no images"
    looked_at = 0
    for path in paths:
        records, is_found = read.look_for_images(path)
        if is_found:
            return ""
        looked_at += records
    # Of files that hold nothing at all, extract says that they do.
    return f"none in the {looked_at:,} records of archives that were looked at" if looked_at else ""
