"""Finding a run: its input files, and whether these fit the settings. Nothing is written."""

from collections.abc import Callable, Sequence
from itertools import takewhile
from pathlib import Path

from altalign import storage
from altalign.data.schema import RULES_VERSION
from altalign.errors import UnreadableError, UsageError
from altalign.filters import identity
from altalign.pipelines import read
from altalign.pipelines.images import calibration_files, measuring
from altalign.pipelines.read import folder, test_sets
from altalign.pipelines.read.tables import table
from altalign.pipelines.run.domains import Domains
from altalign.pipelines.run.units import Grown, InputFile, Run
from altalign.pipelines.web import signing
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
        where = "[decontaminate] test_sets"
        # first the path itself: looking for its files may already read the run's
        _check_apart(test_set.path, run_folder, f"{where}: {test_set.path}")
        for part in test_sets.parts(test_set):
            for path in part.paths:
                _check_apart(path, run_folder, f"{where}: {path}")
    if calibration := config.decontaminate.calibration:
        calibration_files.named(calibration, hooks.embedder)
        _check_apart(calibration, run_folder, f"[decontaminate] calibration = {calibration!r}")
    if config.fetch.source == "web":
        Domains.load(config.fetch.blocked_domains)
        if config.fetch.signing_key:
            signing.read_key(config.fetch.signing_key)
    run = Run(run_folder, config, tuple(files), own.modules(config, config_path))
    own.check(config, run.modules)
    return run


def _matching(pattern: str, where: str) -> list[str]:
    """The files that match a glob; a path that exists as it is written is itself, whatever brackets it has."""
    _check(storage.check_input, pattern, where)
    if paths := storage.find(pattern):
        return paths
    if storage.is_remote(pattern) or storage.is_of_web(pattern):
        raise UsageError(f"{where}: nothing matches {pattern!r}; look at what is there, and whether it may be listed")
    repair = "give paths relative to the working directory"
    raise UsageError(f"{where}: nothing matches {pattern!r} (from {Path.cwd()}); {repair}")


def _check(check: Callable[[str], None], path: str, where: str) -> None:
    try:
        check(path)
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
    kind, why, is_folder = storage.kind(path), "", settings.kind == "folder"
    if is_folder and kind != "folder":
        why = f'{path} is a file, and kind = "folder"; name the folder that it is in'
    elif kind == "folder" and not is_folder:
        repair = f'name its files, such as {path}/*; of images, curate it as an input of kind = "folder"'
        why = f'{path} is a folder, and kind = "{settings.kind}"; {repair}'
    elif kind == "other":
        why = f"{path} is no regular file (a pipe or a device); write it to a file first"
    elif storage.is_inside(path, run_folder) or (is_folder and storage.is_inside(run_folder, path)):
        why = f"{path} overlaps the run's own folder {run_folder}; keep input and run apart"
    elif not path.isprintable() or any("\ud800" <= character <= "\udfff" for character in path):
        why = f"{path!r} has a name that is not UTF-8 or holds control characters; rename it"
    if why:
        raise UsageError(f"{where}: {why}")


def _check_apart(path: str, run_folder: str, where: str) -> None:
    """Refuse what decontamination reads if it overlaps the run's folder, whose files the run deletes."""
    if storage.is_inside(path, run_folder) or storage.is_inside(run_folder, path):
        raise UsageError(f"{where}: overlaps the run's own folder {run_folder}; keep the two apart")


def check_images(run: Run) -> None:
    """Refuse inputs that can hold no images where all images come from the inputs: all would be not_in_archive."""
    why = list[str]()
    for settings in run.config.input:
        if settings.kind != "wat" and (settings.kind != "table" or settings.image_column):
            return
        without = "WAT files hold no images" if settings.kind == "wat" else "a table without [input] image_column"
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
        where, path = f"text.tables = {folder!r}", storage.join(folder, f"{name}.json")
        try:
            facts = storage.read_json(path)
        except UnreadableError as error:
            raise UsageError(f"{where}: {error}") from None
        if not facts:
            raise UsageError(f"{where}: {path} is not there; give the folder `tables` of a run whose texts are judged")
        expected = {"rules_version": RULES_VERSION, "hash_versions": identity.HASH_VERSIONS, **limit}
        for key, value in expected.items():
            if facts.get(key) != value:
                raise UsageError(f"{where}: {name}.json has {key} = {facts.get(key)!r}, not {value!r}")
