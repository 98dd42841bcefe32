"""`altalign merge`: a run of all samples of several runs, as far as one run over all the input would have them too."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import combinations
from typing import Any

from altalign import storage, terminal
from altalign.data.stages import REMOVED_FILE, own_files
from altalign.errors import UsageError
from altalign.pipelines import curate
from altalign.pipelines.change import remove
from altalign.pipelines.derive import common, make_run
from altalign.pipelines.derive import parents as parents_of
from altalign.pipelines.derive.make_run import Making
from altalign.pipelines.derive.parents import Parent
from altalign.pipelines.engine.options import options
from altalign.pipelines.run.removal_list import of_run
from altalign.pipelines.run.shard_tables import COMMON
from altalign.pipelines.run.units import Run
from altalign.settings.common import flatten, stage_of
from altalign.settings.curate import CurateConfig
from altalign.terminal import many

_OF_FILES = ("file ", "files of test set ", "module ")  # begin names of what stages rest on, beside settings
_OF_ASKING = ("source", "ports", "allow_addresses", "user_agent")  # of [fetch]: no image that came depends on them
_SHOWN = 8


def merge(parents: Sequence[Parent], config: CurateConfig, flags: list[str]) -> int:
    """Make a run of several; `config` is that of the first, for the new folder.

    Raises:
        UsageError: their settings differ in what decides a pair, they were made of the same run, or they do not know
            what they dropped.
    """
    check(parents)
    merged = Run(config.run.folder, reconciled(config, parents), ())
    before = curate.each(COMMON, common.plan, partial(common.find, tuple(parents)))
    said = {"not_known": list(_not_known(parents))}
    conclude = partial(_learn, said["not_known"])
    chosen = partial(common.choose, tuple(parents))
    of = Making("merge", said, tuple(parents), chosen, before=(before,), conclude=conclude)
    made = make_run.make(of, merged, options(merged.config.engine, flags))
    if out := _keep_out(made, of.lineage):
        terminal.stderr().print(f"{many(out, 'pair')} that one run has removed and another had: left out")
    code = curate.show(made)
    for line in storage.read_sealed(made.path("manifest.json"))["lineage"]["settings"]["not_known"]:
        terminal.stderr().print(terminal.shown(line), style="yellow", soft_wrap=True)
    return code


def _learn(not_known: list[str], run: Run) -> None:
    """Add what a count of all rows has told, before the manifest is written."""
    (facts,) = (facts for _, facts in run.all_facts(COMMON))
    if n := facts.images_that_differ:
        not_known.append(f"images that have other bytes in another run: {n:,}; pairs keep their own")
    if n := facts.pairs_without_image:
        not_known.append(
            f"pairs whose image one run did not get and another has: {n:,}; one run over all the input may keep them, "
            "or their row of a pair that several runs have"
        )


def _keep_out(made: Run, lineage: Mapping[str, Any]) -> int:
    """Take out of the new run what was removed from any of its parents; returns how many pairs others had of it."""
    if not storage.exists(path := made.path(REMOVED_FILE)):
        return 0
    with storage.locked(made.folder), own_files(made.folder):
        merged = parents_of.opened(made.folder, made.config)
        found = remove.find(merged, of_run(path), near=None)
        if found.has_rows:
            remove.remove(made, merged, found, by="", because="refused by altalign merge", lineage=lineage)
    return found.pairs


# Whether, and as what ------------------------------------------------------------------------------------------------


def check(parents: Sequence[Parent]) -> None:
    """Refuse runs that cannot be merged.

    Raises:
        UsageError: naming what differs.
    """
    for one, other in combinations(parents, 2):
        if shared := _numbers(one.digest, one.lineage) & _numbers(other.digest, other.lineage):
            what = f"made of the same run ({sorted(shared)[0][:12]})"
            raise UsageError(f"{one.folder} and {other.folder}: {what}; select from that one instead")
        if differing := list(_differences(one, other)):
            more = f"; and {len(differing) - _SHOWN} more" if len(differing) > _SHOWN else ""
            raise UsageError(
                f"{one.folder} and {other.folder} differ: {'; '.join(differing[:_SHOWN])}{more}; curate one of them "
                "anew with the settings of the other"
            )
    for parent in parents:
        if not parent.config.audit.keep_dropped:
            raise UsageError(
                f"{parent.folder}: audit.keep_dropped = false, so on how many images a text is in all runs cannot be "
                "counted; curate it anew with audit.keep_dropped = true"
            )
        if parent.config.dedup.within_pool != "off":
            raise UsageError(
                f"{parent.folder}: dedup.within_pool = {parent.config.dedup.within_pool!r}, and near-duplicates of one "
                "run in another are not looked for; curate all the input as one run"
            )


def _numbers(digest: str, lineage: Mapping[str, Any] | None) -> set[str]:
    """The numbers of a run and of all runs that it was made of."""
    found = {digest}
    for parent, before in zip(*((lineage or {}).get(name, ()) for name in ("parents", "before")), strict=True):
        found |= _numbers(parent, before)
    return found


def _differences(one: Parent, other: Parent) -> Iterator[str]:
    """What decides pairs and differs between two runs, in words."""
    settings = [dict(flatten(_deciding(parent.config))) for parent in (one, other)]
    for name in dict.fromkeys([*settings[0], *settings[1]]):
        values = [of.get(name, "absent") for of in settings]
        if values[0] != values[1] and stage_of(CurateConfig, name) is not None:
            yield f"{name} = {values[0]!r} and {values[1]!r}"
    files = [_files_read(parent) for parent in (one, other)]
    for name in sorted(files[0].keys() & files[1].keys()):
        if files[0][name] != files[1][name]:
            yield f"{name}: other content"


def _deciding(config: CurateConfig) -> dict[str, Any]:
    not_deciding: Any = {
        **{"run": True, "input": True, "card": True, "shards": {"samples_per_shard"}, "text": {"tables"}},
        "fetch": set(_OF_ASKING),
    }
    return config.model_dump(mode="json", exclude=not_deciding)


def _files_read(parent: Parent) -> dict[str, Any]:
    """Digests of files that the stages of a run rest on, beside its input; none of a run that was made of others."""
    stages = storage.read_json(parent.path("run.json")).get("stages", {})
    reads = (of.get("reads", {}) for of in stages.values())
    return {name: value for each in reads for name, value in each.items() if name.startswith(_OF_FILES)}


def reconciled(config: CurateConfig, parents: Sequence[Parent]) -> CurateConfig:
    """The settings of the new run: all inputs; of the card what all runs say.

    Raises:
        UsageError: they cannot be those of one run.
    """
    values = config.model_dump(mode="json")
    every = [each for parent in parents for each in parent.config.input]
    inputs = [{**each.model_dump(mode="json"), "name": each.source} for each in every]  # as their pairs carry it
    fetches = [parent.config.fetch for parent in parents]
    if any(of.source == "web" for of in fetches):
        values["fetch"]["source"] = "web"
    for name in ("ports", "allow_addresses"):
        values["fetch"][name] = list(dict.fromkeys(each for of in fetches for each in getattr(of, name)))
    values["input"] = [each for number, each in enumerate(inputs) if each not in inputs[:number]]
    cards = [parent.config.card.model_dump(mode="json") for parent in parents]
    same = {name: value for name, value in cards[0].items() if all(card[name] == value for card in cards)}
    languages = list(dict.fromkeys(language for card in cards for language in card["languages"]))
    values["card"] = {**same, "languages": languages if all(card["languages"] for card in cards) else []}
    return CurateConfig.from_values(values, where="merge")


def _not_known(parents: Sequence[Parent]) -> Iterator[str]:
    """What one run over all the input may have decided otherwise, and cannot be known from these."""
    vocabularies = [storage.read_json(parent.path("tables", "vocabulary.json")) for parent in parents]
    size = parents[0].config.text.vocabulary_size
    if not all(of.get("all") for of in vocabularies) or sum(of.get("distinct", 0) for of in vocabularies) > size:
        yield "text.vocabulary_size: which n-grams are rare was decided by each run alone"
    if parents[0].config.decontaminate.test_sets and not parents[0].config.decontaminate.calibration:
        yield "decontaminate: each run has learned a map and clusters of its own"
    for name in _OF_ASKING:
        if len({str(getattr(parent.config.fetch, name)) for parent in parents}) > 1:
            yield f"fetch.{name}: differs, and each image came as its own run has it"
    if any(storage.exists(parent.path(REMOVED_FILE)) for parent in parents):
        yield "what was removed from a run is not counted"
