"""Refuses, before any work, inputs from which no image can come where images have to be in hand."""

from collections.abc import Sequence

from altalign.errors import UsageError
from altalign.pipelines import read
from altalign.pipelines.run.units import Run
from altalign.settings.curate import InputSettings
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
