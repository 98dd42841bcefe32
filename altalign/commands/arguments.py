"""What verbs share: the parser of arguments, the settings of runs, as many workers as fit, and flags for Beam."""

import argparse
import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from altalign import storage, terminal
from altalign.audit.run_folder import RunFolder
from altalign.data.stages import REMOVED_FILE, check_curated, damaged, own_files
from altalign.errors import UsageError
from altalign.machine import memory

if TYPE_CHECKING:
    from altalign.settings.curate import CurateConfig

TO_BEAM = "Flags after -- go to Beam."


class Parser(argparse.ArgumentParser):
    """An `ArgumentParser` that raises instead of printing its usage, and takes options by their whole names."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Refuse the arguments: what is wrong with them is one line, as every other error."""
        raise UsageError(f"{message}; `{self.prog} --help` says what there is")

    def parse_args(self, *given: Any, **settings: Any) -> Any:
        """The arguments; or where a shell asks how a command goes on, the answer, and the process ends."""
        if "_ARGCOMPLETE" in os.environ:
            import argcomplete

            os.environ["_ARGCOMPLETE"] = str(len(self.prog.split()))  # the arguments are behind so many words
            argcomplete.autocomplete(self, always_complete_options=False)
        return super().parse_args(*given, **settings)

    def add_repeatable(self, option: str, metavar: str, words: str) -> None:
        """Add an option that may be given several times; `words` are its help."""
        self.add_argument(option, action="append", default=[], metavar=metavar, help=words)

    def add_overrides(self, words: str) -> None:
        """Add `--set`."""
        self.add_repeatable("--set", "SECTION.KEY=VALUE", words)

    def add_test_sets(self, words: str) -> None:
        """Add `--test-set`, described by `words`, and `--image-column`."""
        self.add_repeatable("--test-set", "NAME=PATH", words)
        self.add_argument("--image-column", default="image", metavar="COLUMN", help="of Parquet: with images (image)")

    def only(self, arguments: argparse.Namespace, way: str, *allowed: str) -> None:
        """Refuse options that do not go with a way to use the verb; those `allowed` do, by their destinations."""
        for action in self._actions:
            value = getattr(arguments, action.dest, action.default)
            if action.option_strings and action.dest not in allowed and value != action.default:
                raise UsageError(f"{action.option_strings[0]}: does not go with {way}; leave it out")

    def parse(self, argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
        """The arguments of the verb, and the flags after `--`, which are for Beam."""
        at = argv.index("--") if "--" in argv else len(argv)
        return self.parse_args(list(argv[:at])), list(argv[at + 1 :])


def positive(word: str) -> int:
    """A whole number above 0, of an argument."""
    if not word.isdecimal() or not int(word):
        raise argparse.ArgumentTypeError(f"{word}: not a whole number of 1 or more")
    return int(word)


def config_of_run(folder: str, overrides: Sequence[str] = ()) -> "CurateConfig":
    """The settings of a run with the engine that it was run with, and these overrides."""
    from altalign.settings.curate import CurateConfig

    with own_files(folder):
        run = RunFolder.open(folder.rstrip("/") or "/")
    path = run.path("config.toml")
    if not storage.exists(path):
        raise damaged(run.folder, path, "it is not there")
    engine = [f"engine.{name}={json.dumps(value)}" for name, value in run.facts.get("engine", {}).items()]
    return CurateConfig.load(path, [f"run.folder={json.dumps(run.folder, ensure_ascii=False)}", *engine, *overrides])


def config_of_file(path: str, overrides: Sequence[str]) -> "CurateConfig":
    """The settings of a file; the `config.toml` of a run, which names no folder, is of the run that it lies in."""
    from altalign.settings.curate import CurateConfig

    config, folder = CurateConfig.load(path, overrides), storage.folder_of(path) or "."
    is_of_run = storage.name(path) == "config.toml" and storage.exists(storage.join(folder, "run.json"))
    return config_of_run(folder, overrides) if is_of_run and not config.run.folder else config


def config_of_curation(folder: str, overrides: Sequence[str] = ()) -> "CurateConfig":
    """The settings of a run that a curation has made, and no other verb of other runs; as many workers as fit."""
    check_curated(folder)
    return fitted(config_of_run(folder, overrides))


def config_in(run: str, out: str, overrides: Sequence[str] = ()) -> "CurateConfig":
    """The settings of a run, for another folder."""
    out = out.rstrip("/") or "/"
    storage.check(out)
    return fitted(config_of_run(run, [*overrides, f"run.folder={json.dumps(out, ensure_ascii=False)}"]))


def config_with_test_sets(arguments: argparse.Namespace) -> "CurateConfig":
    """The settings of a run that still has its `work/`, with the test sets of a command line."""
    from altalign.settings.curate import CurateConfig

    check_curated(arguments.run)
    config = fitted(config_of_run(arguments.run, arguments.set))
    check_work(config.run.folder)
    values, paths = config.model_dump(mode="json"), {each.name: each.path for each in config.decontaminate.named_sets}
    test_sets = values["decontaminate"]["test_sets"]
    for named in arguments.test_set:
        name, _, path = named.partition("=")
        if not (name and path):
            raise UsageError(f"--test-set {named}: not of the form NAME=PATH, such as coco=data/coco/val2017")
        if paths.get(name, path) != path:
            known = f"the run has a test set of that name ({paths[name]})"
            raise UsageError(f"--test-set {named}: {known}; give another name")
        each = {"name": name, "path": path, "image_column": arguments.image_column}
        test_sets += [each] * (each not in test_sets)
    return CurateConfig.from_values(values, where="--test-set") if arguments.test_set else config


def fitted(config: "CurateConfig") -> "CurateConfig":
    """The settings with as many workers as there is memory for; prints a line where these are fewer."""
    free = memory.free()
    fit = memory.workers_at_most(config.engine.threads, free)
    if fit == config.engine.threads:
        return config
    terminal.stderr().print(
        f"{free.bytes // memory.MB:,} MB of memory are free ({free.limit}), so workers = {fit}", soft_wrap=True
    )
    return config.model_copy(update={"engine": config.engine.model_copy(update={"workers": fit})})


def check_work(folder: str) -> None:
    """Refuse a run whose `work/` is gone, or keeps nothing that may be used again."""
    is_gone = storage.kind(storage.join(folder, "work")) == "missing"
    if storage.exists(storage.join(folder, REMOVED_FILE)):
        why = "work/ went with the pairs that were removed, and what was fetched with it"
        why = why if is_gone else f"what {REMOVED_FILE} keeps out would come back"
        raise UsageError(f"{folder}: {why}; do this to a run before pairs are removed")
    if is_gone:
        raise UsageError(
            f"{folder}: work/ was deleted, and what was fetched with it; "
            "`altalign curate` with --restart runs everything anew"
        )
