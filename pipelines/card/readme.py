"""The data-set card, from a run's counts, summary and settings: `README.md` with the Hub's header, `croissant.json`.

Deterministic: no times, no machine, and nothing that came from the web; captions stay in the shards.
"""

import html
import json
from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Any

import pyarrow as pa

from altalign import listing, storage
from altalign.curation import CurateConfig, InputSettings
from altalign.pipelines.card.croissant import croissant
from altalign.pipelines.card.facts import COLUMNS, MEANINGS, RULES, CardFacts, hub_licence, model_of, size_category
from altalign.reason_words import of_own, of_select
from altalign.reasons import KEPT, REASONS, DropReason
from altalign.schema import RULES_VERSION, SAMPLE
from altalign.terminal import shown

_KINDS = {
    "warc": "web archives (WARC)",
    "wat": "metadata of web archives (WAT)",
    "table": "a table",
    "webdataset": "WebDataset tars",
    "folder": "folders of images",
}
_NOT_COMPARED = ": no model has compared them with their images"
_SAID = ("NSFW: off", "decontamination: off")  # notes that limits say in more words


def write(folder: str, facts: CardFacts) -> dict[str, str]:
    """Write both files into a run folder; returns the SHA-256 of each, in hex."""
    readme_path, croissant_path = (storage.join(folder, name) for name in listing.CARD)
    storage.write_bytes(readme_path, readme(facts).encode())
    storage.write_json(croissant_path, croissant(facts))
    return {name: listing.digest(storage.join(folder, name)).digest for name in listing.CARD}


# README.md ------------------------------------------------------------------------------------------------------------


def readme(facts: CardFacts) -> str:
    """The card for people, with the header for the Hub."""
    parts = [_header(facts), f"# {_text(facts.name)}", _about(facts)]
    if facts.summary["pairs"]:
        parts += ["## Load", _load(facts), "## Columns", _columns()]
    parts += [
        "## How it was made",
        _method(facts),
        _rules(facts),
        *(["## Scores", _scores(facts)] if facts.scores else []),
        "## Limits",
        _limits(facts),
        "## Digest",
        _digest(facts),
        "## Rights, and removal",
        _rights(facts),
    ]
    return "\n\n".join(parts) + "\n"


def _header(facts: CardFacts) -> str:
    card, lines = facts.config.card, [f"pretty_name: {_quoted(facts.name)}"]
    licence = hub_licence(card.licence)
    lines.append(f"license: {licence}")
    if licence == "other" and card.licence.lower() != "other":
        lines.append(f"license_name: {_quoted(card.licence)}")
    if card.languages:
        lines += [
            "language:",
            *(f"- {_quoted(each)}" for each in dict.fromkeys(tag.partition("-")[0] for tag in card.languages)),
        ]
    if any("-" in tag for tag in card.languages):
        lines += ["language_bcp47:", *(f"- {_quoted(tag)}" for tag in card.languages)]
    lines += ["size_categories:", f"- {size_category(facts.summary['pairs'])}"]
    if facts.summary["pairs"]:
        lines += _configs(facts)
        # of columns that were kept `datasets` finds the types itself
        lines += _features(facts) if not any(each.keep_columns for each in facts.config.input) else []
    return "\n".join(["---", *lines, "---"])


def _configs(facts: CardFacts) -> list[str]:
    """The files that the Hub and `datasets` load, which take one reader for a folder.

    These are the tars, or the side-cars where images are of several kinds.
    """
    ending = "tar" if facts.is_one_format else "parquet"
    return ["configs:", "- config_name: default", "  data_files:", "  - split: train", f"    path: shards/*.{ending}"]


def _features(facts: CardFacts) -> list[str]:
    """The features of these files, as `datasets` finds them."""
    lines = ["dataset_info:", "- config_name: default", "  features:"]
    if not facts.is_one_format:
        return [*lines, *(line for field in SAMPLE for line in (f"  - name: {field.name}", f"    dtype: {field.type}"))]
    of_json = [
        line
        for field in SAMPLE
        for line in (
            f"    - name: {field.name}",
            f"      dtype: {'string' if pa.types.is_string(field.type) else 'int64'}",
        )
    ]
    lines += [
        "  - name: jpg",
        "    dtype: image",
        "  - name: txt",
        "    dtype: string",
        "  - name: json",
        "    struct:",
        *of_json,
    ]
    return [*lines, "  - name: __key__", "    dtype: string", "  - name: __url__", "    dtype: string"]


def _about(facts: CardFacts) -> str:
    pairs, images, size = (facts.summary[name] for name in ("pairs", "images", "bytes"))
    last = facts.counts.stages_of_run()[-1].value
    kept = {source: rows for stage, source, reason, rows in facts.counts.to_json() if stage == last and reason == KEPT}
    form = "as JPEG" if facts.is_one_format else "in the formats in which they were found"
    lines = [
        f"{pairs:,} pairs of an image and its alt-text, of {images:,} distinct images {form}, {size:,} bytes of tars. "
        "An image with several texts is in as many pairs."
        if pairs
        else "Nothing is left of the pool: there are no pairs, and no shards.",
        "",
        *_table(
            ("Source", "Kind", "Pairs"),
            (
                [_text(shown(source)), kinds, f"{kept.get(source, 0):,}"]
                for source, kinds in _sources(facts.config.input).items()
            ),
        ),
    ]
    languages = facts.config.card.languages
    said = f"as declared by those who made it: {', '.join(languages)}" if languages else "not declared"
    is_detected = any(score.facts.get("kind") == "language" for score in facts.scores)
    by = "`altalign score` has detected that of each caption" if is_detected else "Nothing has detected them"
    return "\n".join([*lines, "", f"Languages: {said}. {by}."])


def _sources(inputs: Iterable[InputSettings]) -> dict[str, str]:
    found: dict[str, dict[str, None]] = {}
    for each in inputs:
        found.setdefault(each.source, {})[_KINDS[each.kind]] = None
    return {source: ", ".join(kinds) for source, kinds in found.items()}


def _load(facts: CardFacts) -> str:
    """Blocks of code, to be run in the folder of the card."""
    tars = (
        "from datasets import load_dataset\n\n"
        'pairs = load_dataset("webdataset", data_files={"train": "shards/*.tar"}, split="train", streaming=True)'
    )
    by_keys = (
        "import glob\n\nimport webdataset\n\n"
        'samples = webdataset.WebDataset(sorted(glob.glob("shards/*.tar")), shardshuffle=False)'
    )
    rows = (
        "from datasets import load_dataset\n\n"
        'rows = load_dataset("parquet", data_files={"train": "shards/*.parquet"}, split="train")'
    )
    records = 'import mlcroissant\n\nrecords = mlcroissant.Dataset("croissant.json").records("pairs")'
    first = (
        "A sample is KEY.jpg, KEY.txt (the caption) and KEY.json (the row). In the folder of this card:"
        if facts.is_one_format
        else "A sample is an image (its extension says what kind), KEY.txt (the caption) and KEY.json (the row). "
        "Images are of several kinds, which `datasets` does not read from tars; `webdataset` does. "
        "In the folder of this card:"
    )
    return "\n\n".join(
        [
            first,
            _code(tars if facts.is_one_format else by_keys),
            "All but the images, from the side-car of each tar; `tar_offset` and `tar_bytes` say where an image lies:",
            _code(rows),
            "The same by [Croissant](https://mlcommons.org/croissant):",
            _code(records),
            "`manifest.json` has rows, bytes and SHA-256 of every file of `shards/`. Samples are in the order of "
            "(`image_id`, `key`), which are hashes: captions of one image are neighbours, and all else is shuffled."
            + " Shards `g0002-…` and the like were added later, each in an order of its own."
            * facts.is_grown,
        ]
    )


def _code(text: str) -> str:
    return f"```python\n{text}\n```"


def _columns() -> str:
    return "\n".join(
        _table(
            ("Column", "Type", "What it is"),
            ([f"`{field.name}`", str(field.type), COLUMNS[field.name]] for field in SAMPLE),
        )
    )


def _method(facts: CardFacts) -> str:
    """What was done, stage by stage, with counts."""
    config = facts.config
    in_hand = config.fetch.source == "archive" or any(each.has_images for each in config.input)
    from_web = config.fetch.source == "web"
    images = " and ".join(["the inputs themselves"] * in_hand + ["the web (HTTP)"] * from_web)
    honoured = [
        name
        for name, is_on in (
            ("opt-out headers", config.fetch.honour_opt_out),
            ("robots.txt", config.fetch.honour_robots),
        )
        if is_on
    ]
    asked = (
        f", where {' and '.join(honoured) or 'no opt-out'} {'were' if len(honoured) > 1 else 'was'} respected"
        if config.fetch.source == "web"
        else ""
    )
    resized = config.shards.resize_short_side_px
    stored = f"A short side above {resized:,} px was made that long. " if resized else ""
    told = (
        "By the method of ALIGN ([Jia et al., 2021](https://arxiv.org/abs/2102.05918), section 3 and appendix A), with "
        f"altalign, rules version {RULES_VERSION}. Each stage received what the one before it kept; images are from "
        f"{images}{asked}. {stored}`config.toml` has every setting, `counts.parquet` these counts by source."
    )
    rows = []
    for stage in facts.counts.summary(facts.counts.stages_of_run()):
        received, kept = stage["received"], stage["kept"]
        rows.append(
            [
                stage["stage"],
                f"{received:,}",
                f"{received - kept:,}",
                f"{kept:,}",
                f"{kept / received:.2%}" if received else "",
            ]
        )
    return "\n".join([told, "", *_table(("Stage", "Received", "Dropped", "Kept", "Share kept"), rows)])


def _rules(facts: CardFacts) -> str:
    """Every rule that is on or that dropped a pair: threshold, the paper's, pairs."""
    rows = []
    for stage in facts.counts.stages_of_run():
        dropped = facts.counts.dropped(stage)
        for reason in REASONS[stage]:
            number = dropped.get(reason.value, 0)
            if number or (reason in RULES and _is_on(reason, facts.config)):
                rows.append(
                    [
                        f"{stage.value}: {MEANINGS[reason]}",
                        *_threshold(reason, facts),
                        f"`{reason.value}`",
                        f"{number:,}",
                    ]
                )
        for reason, said in (of_own(stage, facts.config) | of_select(dropped)).items():
            said = facts.conditions.get(reason, said)
            rows.append([f"{stage.value}: {said}", "", "ours", f"`{reason}`", f"{dropped.get(reason, 0):,}"])
    told = (
        "A pair is counted under the first rule that holds. Where the paper has no such rule, or no number, it is ours."
    )
    return "\n".join([told, "", *_table(("Rule", "Here", "ALIGN", "Reason", "Pairs dropped"), rows)])


def _is_on(reason: DropReason, config: CurateConfig) -> bool:
    match reason:
        case DropReason.IMAGE_NSFW:
            return bool(config.image.nsfw.model)
        case DropReason.NEAR_DUPLICATE_OF_TEST_IMAGE:
            return bool(config.decontaminate.test_sets)
        case DropReason.HTTP_TIMEOUT | DropReason.HTTP_TOO_LARGE:
            return config.fetch.source == "web"
    return True


def _threshold(reason: DropReason, facts: CardFacts) -> list[str]:
    """The threshold of this run, and the paper's."""
    if reason not in RULES:
        return ["", "ours"]
    setting, is_of_paper = RULES[reason]
    default = CurateConfig.from_values({"input": {"paths": ["-"]}}, where="the card")
    here = _value(facts.config, setting)
    if reason is DropReason.NEAR_DUPLICATE_OF_TEST_IMAGE:  # a calibration may have brought another
        here = facts.summary.get("near_duplicates", {}).get("similarity_above", here)
    paper = (
        _number(_value(default, setting)) if is_of_paper else "no number" if reason is DropReason.IMAGE_NSFW else "ours"
    )
    return [_number(here), paper]


def _value(config: CurateConfig, setting: str) -> Any:
    return reduce(getattr, setting.split("."), config)


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _scores(facts: CardFacts) -> str:
    """The scores beside the shards, and the models that they are of."""
    told = (
        "Measured by `altalign score`: `scores/NAME/` has a Parquet file for each shard, with `key` and these columns. "
        "The digest stands for weights, preprocessing, settings and versions; `manifest.json` beside the files has "
        "them one by one. The weights are not part of the data, and have licences of their own."
    )
    rows = (
        [
            _text(score.name),
            _text(str(score.facts["kind"])),
            ", ".join(f"`{name}`" for name in score.columns),
            _text(model_of(score)) or "none",
            f"`{str(score.facts['digest'])[:16]}`",
        ]
        for score in facts.scores
    )
    return "\n".join([told, "", *_table(("Score", "Kind", "Columns", "Model", "Digest"), rows)])


def _limits(facts: CardFacts) -> str:
    """What a user of the data has to know of what was not done."""
    config = facts.config
    limits = [
        "Captions are alt-texts as people and programs wrote them"
        f"{'' if any(score.facts['kind'] == 'similarity' for score in facts.scores) else _NOT_COMPARED}. "
        "They can be wrong, biased or offensive.",
        "Images and captions can show and name people. Nothing has looked for faces, names or addresses.",
        "Rules on shared texts, on images with many texts and on rare words hold within this pool: of another pool "
        "they would drop other pairs.",
    ]
    if config.dedup.within_pool == "off":
        limits.append("Near-duplicates inside the data stay: one picture under two URLs is two images.")
    if not config.decontaminate.test_sets:
        limits.append("No test set was kept out: results on public benchmarks may be of images that are in the data.")
    if not config.image.nsfw.model:
        limits.append("No classifier has looked for pornographic images.")
    if not config.image.blocked_hashes:
        limits.append("No block list of known illegal or unwanted images was held against it.")
    notes = [each for each in facts.notes if not each.startswith(_SAID)]
    of_run = ["", "Of this run:", "", *(f"- {_text(each)}" for each in notes)] if notes else []
    return "\n".join([*(f"- {each}" for each in limits), *of_run])


def _digest(facts: CardFacts) -> str:
    return (
        f"`{facts.digest}`\n\n"
        f"This is the SHA-256 of `{listing.FILE}`, which has size and SHA-256 of the others, and so stands for all "
        "of them: sign it, or compare it."
    )


def _rights(facts: CardFacts) -> str:
    licence, contact = facts.config.card.licence, facts.config.card.contact
    known = bool(licence) and licence.lower() != "unknown"
    terms = (
        f"The data set as a compilation is under {_text(licence)}."
        if known
        else "The licence is unknown: whoever made the data set has named none."
    )
    ask = (
        f"To have a pair or an image removed, write to {_text(contact)}"
        if contact
        else "No address for requests of removal was given; ask whoever gave you the data"
    )
    return (
        f"{terms} Each image and text is its author's; no licence of theirs was looked for. `image_url` and `page_url` "
        "say where they are from.\n\n"
        f"{ask}, naming the `key` of the pair, the `image_id`, the URL of the image or page, or the site. Every pair "
        "of an image has the same `image_id`, "
        "and the same keys come back in a new version of the data, so that what was removed can be kept out."
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    right = {"Pairs", "Received", "Dropped", "Kept", "Share kept", "Pairs dropped", "Here", "ALIGN"}
    lines = [head, ["---:" if name in right else "---" for name in head], *rows]
    return [f"| {' | '.join(cells)} |" for cells in lines]


def _text(text: str) -> str:
    """Text of settings as Markdown has it: nothing in it is markup."""
    escaped = html.escape(shown(text), quote=False)
    return "".join(f"\\{character}" if character in "\\`*_[]|~#" else character for character in escaped)


def _quoted(text: str) -> str:
    """A string as YAML (and JSON) has it."""
    return json.dumps(text, ensure_ascii=False)
