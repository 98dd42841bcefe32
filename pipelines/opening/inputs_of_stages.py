"""What the stages of a run rest on: settings, the files that they name, versions.

A stage whose grounds have changed is run anew.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from altalign.data.schema import RULES_VERSION, SCHEMA_VERSION
from altalign.data.stages import STAGES
from altalign.pipelines.images import calibration_files
from altalign.pipelines.read import test_sets
from altalign.pipelines.run.units import WORK_VERSION, InputFile, Module, content, digest, files_named
from altalign.settings.common import dump, flatten, stage_of
from altalign.settings.curate import CurateConfig

OF_TEST_SET = "files of test set "  # begins the name under which the files of a test set are recorded


@dataclass(frozen=True)
class Grounds:
    """What a stage's result rests on, and a digest of that and of the grounds of all stages before it."""

    reads: Mapping[str, object]
    digest: str


def grounds_of(config: CurateConfig, files: Sequence[InputFile], modules: Sequence[Module] = ()) -> dict[str, Grounds]:
    """The grounds of every stage, in the order of stages."""
    reads: dict[str, dict[str, object]] = {stage: {} for stage in STAGES}
    versions = {"schema_version": SCHEMA_VERSION, "rules_version": RULES_VERSION, "work_version": WORK_VERSION}
    reads["extract"] |= versions
    for name, value in flatten(config.model_dump(mode="json")):
        stage = stage_of(CurateConfig, name)
        if stage is not None:
            reads[stage if stage in STAGES else "write"][name] = value
    reads["extract"]["files"] = [file.path for file in files]
    for name in [*files_named(config), *config.fetch.blocked_domains, *config.fetch.blocked_urls]:
        reads["fetch"][f"file {name}"] = content(name)
    for module in modules:
        for stage, entries in (("judge", config.text.filters), ("fetch", config.image.filters)):
            if any(entry.startswith(f"{module.name}:") for entry in entries):
                reads[stage][f"module {module.name}"] = module.digest
    for test_set in config.decontaminate.named_sets:
        stamps = list(test_sets.stamps(test_sets.parts(test_set)))
        reads["decontaminate"][f"{OF_TEST_SET}{test_set.name}"] = digest(stamps)
    for name in calibration_files.files_of(config.decontaminate.calibration):
        reads["decontaminate"][f"file {name}"] = content(name)
    grounds, before = {}, ""
    for stage in STAGES:
        before = hashlib.sha256((before + json.dumps(reads[stage], sort_keys=True)).encode()).hexdigest()
        grounds[stage] = Grounds(reads[stage], before)
    return grounds


def resolved(config: CurateConfig) -> str:
    """The content of `config.toml`: the resolved settings, defaults included, without [engine] and run.folder."""
    return dump(config.model_dump(mode="json", exclude={"engine": True, "run": {"folder"}}))
