"""A run folder for its readers: the facts of run.json, settings, paths. Needs neither Beam nor the inputs."""

import tomllib
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from altalign import storage
from altalign.data.stages import RunRecord, damaged
from altalign.errors import UsageError, first_line
from altalign.storage import atomic_change

if TYPE_CHECKING:
    from altalign.settings.curate import CurateConfig


@dataclass(frozen=True)
class RunFolder:
    """A run, finished or under way."""

    folder: str
    facts: RunRecord

    @classmethod
    def open(cls, folder: str) -> "RunFolder":
        """Opens a run. Raises UsageError: it is not the folder of one; UnreadableError: run.json is damaged."""
        storage.check(folder)
        if storage.kind(folder) != "folder":
            raise UsageError(f"{folder}: no such run folder; give the [run] folder of a curation")
        atomic_change.settle(folder)
        facts = storage.read_json(storage.join(folder, "run.json"))
        if not facts:
            raise UsageError(f"{folder}: no run of altalign (it has no run.json); give the [run] folder of a curation")
        if not isinstance(facts.get("stages"), dict):
            raise damaged(folder, storage.join(folder, "run.json"), "no stages are in it")
        return cls(folder.rstrip("/") or "/", cast(RunRecord, facts))

    def path(self, *parts: str) -> str:
        """A path inside the run."""
        return storage.join(self.folder, *parts)

    def json(self, *parts: str) -> dict[str, Any]:
        """The content of a JSON file of the run; empty where there is none. Raises UnreadableError."""
        return storage.read_json(self.path(*parts))

    @property
    def settings(self) -> dict[str, Any]:
        """The content of config.toml, each time anew; another version may have written it. Raises DamagedError."""
        path = self.path("config.toml")
        try:
            return tomllib.loads(storage.read_bytes(path).decode())
        except FileNotFoundError:
            raise damaged(self.folder, path, "it is not there") from None
        except ValueError as error:
            raise damaged(self.folder, path, f"not TOML: {error}") from None

    @cached_property
    def config(self) -> "CurateConfig":
        """The resolved settings of the run. Raises DamagedError: config.toml is missing or damaged."""
        from altalign.settings.curate import CurateConfig  # a tenth of a second, which `status` need not wait for

        path = self.path("config.toml")
        try:
            return CurateConfig.from_values(self.settings, where=path)
        except UsageError as error:
            raise damaged(self.folder, path, first_line(error).removeprefix(path).lstrip(": ")) from None

    @cached_property
    def conditions(self) -> dict[str, str]:
        """The conditions of the selection that the run was made by, in words, by the reasons of what they drop."""
        from altalign.filters import where  # Arrow, which `status` need not wait for

        return where.of_reasons(self.json("manifest.json").get("lineage"))

    @property
    def is_finished(self) -> bool:
        """Whether the run has finished: it has a manifest."""
        return storage.exists(self.path("manifest.json"))

    def check_finished(self, so: str) -> None:
        """Refuse a run that is not finished; `so` says what follows from that. Raises UsageError: it is not."""
        if not self.is_finished:
            repair = "`altalign status` shows how far it is, `altalign curate` finishes it"
            raise UsageError(f"{self.folder}: not finished, so {so}; {repair}")
