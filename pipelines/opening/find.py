"""Finding a run: its input files, and whether these fit the settings. Nothing is written."""

import os
from collections.abc import Callable, Sequence
from itertools import takewhile
from pathlib import Path

from altalign import storage
from altalign.data.schema import RULES_VERSION
from altalign.data.shards import IMAGE_NAMES
from altalign.errors import UnreadableError, UsageError
from altalign.filters import identity
from altalign.pipelines import read
from altalign.pipelines.images import calibration_files, measuring
from altalign.pipelines.read import folder, test_sets
from altalign.pipelines.read.tables import table
from altalign.pipelines.run.domains import Domains
from altalign.pipelines.run.units import Grown, InputFile, Run
from altalign.rules import own
from altalign.settings.curate import OWN_TABLES, CurateConfig, InputSettings
from altalign.terminal import shown


def find_run(config: CurateConfig, *, config_path: str) -> Run:
    """The run of these settings, its input files found and checked; nothing is written.

    Raises:
        UsageError: no file matches, a file lacks a column that settings name, or a list or a model cannot be read.
    """
    run_folder = config.run.folder
    if not run_folder:
        raise UsageError(f'{config_path} [run] folder: not set; name where the run is written, as folder = "runs/mine"')
    _check(storage.check, run_folder, f"{config_path} [run] folder")
    where = config_path if config_path == "--input" else f"{config_path} [input] paths"
    files: list[InputFile] = []
    for number, settings in enumerate(config.input):
        matching = [path for pattern in settings.paths for path in _matching(pattern, where)]
        if not (paths := read.listed(matching, settings)):
            raise UsageError(
                f"{where}: no tar in {', '.join(matching)}; name the tars or a folder of them, "
                'or set kind = "folder" for a folder of images'
            )
        for path in paths:
            _check_input(path, settings, run_folder, where)
        read.check(paths, settings)
        of_source = {file.named for file in files if config.input[file.input].source == settings.source}
        for path, named in zip(paths, _names(paths, settings, of_source), strict=True):
            parts = folder.parts(path, settings) if settings.kind == "folder" else []
            of_path = [(f"{path}#{i}", part) for i, part in enumerate(parts)] or [(path, None)]
            files += [InputFile(len(files) + i, each, number, part, named) for i, (each, part) in enumerate(of_path)]
    hooks = measuring.hooks_of(config)
    measuring.blocked_urls(config.fetch)
    for test_set in config.decontaminate.named_sets:
        if storage.is_inside(run_folder, test_set.path):
            raise UsageError(
                f"[decontaminate] test_sets: {test_set.path}: the run's own folder {run_folder} is in it; "
                "keep test set and run apart"
            )
        for each in sorted({storage.folder_of(path) for part in test_sets.parts(test_set) for path in part.paths}):
            _check_apart(each, run_folder, f"[decontaminate] test_sets: {each}")
    if calibration := config.decontaminate.calibration:
        calibration_files.named(calibration, hooks.embedder)
        _check_apart(calibration, run_folder, f"[decontaminate] calibration = {calibration!r}")
    if config.fetch.source == "web":
        Domains.load(config.fetch.blocked_domains)
    run = Run(run_folder, config, tuple(files), own.modules(config, config_path))
    own.check(config, run.modules)
    return run


def _matching(pattern: str, where: str) -> list[str]:
    """The files that match a glob; a path that exists as it is written is itself, whatever brackets it has."""
    _check(storage.check_input, pattern, where)
    if paths := storage.find(pattern):
        return paths
    from_here, repair = f" (from {Path.cwd()})", "give paths relative to the working directory"
    if storage.is_remote(pattern):
        from_here, repair = "", "look at what is there, and whether it may be listed"
    if storage.is_of_web(pattern):
        repair = "look at the address"
    raise UsageError(f"{where}: nothing matches {pattern!r}{from_here}; {repair}")


def _check(check: Callable[[str], None], path: str, where: str) -> None:
    try:
        check(path)
        os.fsencode(path)
    except UnicodeEncodeError:
        raise UsageError(
            f"{where}: the file system cannot have a name like {path!r} in this locale; "
            "set LC_ALL=C.UTF-8, or rename it"
        ) from None
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None


def _names(paths: Sequence[str], settings: InputSettings, taken: set[str]) -> list[str]:
    """The paths below the folder that all are in; below one above it where its source has (`taken`) such names."""
    plain = (path.partition("?")[0] if storage.is_of_web(path) else path for path in paths)
    split = [path.rstrip("/").split("/") for path in plain]
    folders = (each if settings.kind == "folder" else each[:-1] for each in split)
    shared = sum(1 for _ in takewhile(lambda parts: len({*parts}) == 1, zip(*folders, strict=False)))
    names = (["/".join(each[above:]) for each in split] for above in range(shared, -1, -1))
    return [*map(table.shown_name, next((each for each in names if taken.isdisjoint(each)), paths))]


def _check_input(path: str, settings: InputSettings, run_folder: str, where: str) -> None:
    """Refuse a path that is no file, or no folder, lies in the run's folder, or has a name that cannot be printed."""
    kind, why = storage.kind(path), ""
    if settings.kind == "folder" and kind != "folder":
        why = f'{path} is a file, and kind = "folder"; name the folder that it is in'
    elif settings.kind == "folder" and storage.is_inside(run_folder, path):
        why = f"{path}: the run's own folder {run_folder} is in it; keep input and run apart"
    elif settings.kind != "folder" and kind == "folder":
        why = f"{path} is a folder, where a file is meant; name its files, such as {path}/*"
        if any(name.lower().endswith(IMAGE_NAMES) for name in storage.files_below(path)):
            of_config = 'name it in an [[input]] of kind = "folder"'
            repair = "curate it as a run of its own, and merge the two" if where == "--input" else of_config
            why = f'{path} is a folder of images, and kind = "{settings.kind}"; {repair}'
    elif kind == "other":
        why = f"{path} is no regular file (a pipe or a device); write it to a file first"
    elif storage.is_inside(path, run_folder):
        why = f"{path} is in the run's own folder {run_folder}; keep input and run apart"
    elif not path.isprintable() or any("\ud800" <= character <= "\udfff" for character in path):
        why = f"{path!r} has a name that is not UTF-8 or holds control characters; rename it"
    if why:
        raise UsageError(f"{where}: {why}")


def _check_apart(path: str, run_folder: str, where: str) -> None:
    """Refuse a folder that decontamination reads if it lies in the run's folder, whose files the run deletes."""
    if storage.is_inside(path, run_folder):
        repair = "copy it to another place, and name that"
        raise UsageError(f"{where}: in the run's own folder {run_folder}, whose files are made anew; {repair}")


SAMPLED_FILES = 8  # of an input, spread over its list


def check_images(run: Run) -> None:
    """Look for an input that can hold images, in a sample of records; UsageError: all would be not_in_archive."""
    why = []
    for number, settings in enumerate(run.config.input):
        paths = [file.path for file in run.files if file.input == number]
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
    """Look at the tables that `[text] tables` names; UsageError: they are not there, or of other rules or limits."""
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
        expected = {"rules_version": RULES_VERSION, "hash_versions": identity.HASH_VERSIONS, **limit}
        for key, value in expected.items():
            if facts.get(key) != value:
                raise UsageError(f"text.tables = {folder!r}: {name}.json has {key} = {facts.get(key)!r}, not {value!r}")


def _without_images(paths: Sequence[str], settings: InputSettings) -> str:
    """Why no image can come of an input; empty where one can."""
    if settings.kind == "table":
        return "" if settings.image_column else "a table without [input] image_column"
    if settings.kind == "wat":
        return "WAT files hold no images"
    looked_at = 0
    for path in paths if settings.kind == "warc" else ():
        records, is_there = read.look_for_images(path)
        if is_there:
            return ""
        looked_at += records
    # Of files that hold nothing at all, extract says that they do.
    return f"none in the {looked_at:,} records of archives that were looked at" if looked_at else ""
