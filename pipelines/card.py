"""The data-set card: `README.md` with the Hub's header, `croissant.json`. No times, no machine, no captions or URLs."""

import html
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias, cast

import pyarrow as pa

from altalign import storage
from altalign.data import lineage, listing
from altalign.data.counts import Counts
from altalign.data.reasons import KEPT, OPT_OUTS, PAPERS, REASONS, WORDS, DropReason, Stage
from altalign.data.schema import RULES_VERSION, SIDE_CAR
from altalign.data.scores import Score
from altalign.filters.personal import KINDS
from altalign.filters.reservations import NOTATIONS
from altalign.rules.reason_words import of_own, of_select
from altalign.rules.rule import value_of
from altalign.settings.curate import CurateConfig
from altalign.terminal import shown

Json: TypeAlias = dict[str, object]

# What a column of a side-car is, in the card's words.
COLUMNS = {
    "key": "Name of the sample: hash of its image's identity and its caption",
    "image_id": "The image: hash of its URL, or of its bytes where it has none",
    "image_url": "Where the image was found; null where that is not known",
    "caption": "The alt-text, cleaned; as in KEY.txt",
    "page_url": "The page that shows the image; null where that is not known",
    "source": "The input that the pair is of",
    "source_key": "The name of the row in its input, where it has one",
    "extra": "Columns of the input that were kept, a JSON object; null where there are none",
    "preferences": "What rights holders said of its use, where and when; null where nobody looked",
    "width": "Pixels of the stored image",
    "height": "The same",
    "format": "Of the stored image",
    "bytes": "Of the stored image",
    "sha256": "Of the stored image, in hex",
    "found_sha256": "Of the image's bytes as they were found",
    "words": "Words of the caption",
    "tar_offset": "Where the image's bytes begin in the tar",
    "tar_bytes": "How many there are",
    "image": "Where the image lies, as Parquet's type FILE has it",
}

_SIZES = ("1K", "10K", "100K", "1M", "10M", "100M", "1B", "10B", "100B", "1T")  # each ten times the one before

# Identifiers that the Hub takes, of licences that data have; any other one is "other" there, with its name beside it.
_HUB_LICENCES = """
    apache-2.0 mit afl-3.0 artistic-2.0 bsl-1.0 bsd bsd-2-clause bsd-3-clause bsd-3-clause-clear c-uda cc cc0-1.0
    cc-by-2.0 cc-by-2.5 cc-by-3.0 cc-by-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0
    cc-by-nd-4.0 cc-by-nc-nd-3.0 cc-by-nc-nd-4.0 cc-by-nc-sa-2.0 cc-by-nc-sa-3.0 cc-by-nc-sa-4.0 cdla-sharing-1.0
    cdla-permissive-1.0 cdla-permissive-2.0 etalab-2.0 eupl-1.1 eupl-1.2 gfdl odc-by odbl pddl unlicense other unknown
"""
_SPDX_ON_THE_HUB = {"odc-by-1.0": "odc-by", "odbl-1.0": "odbl", "pddl-1.0": "pddl", "c-uda-1.0": "c-uda"}


_CAPTIONS_OF_LANGUAGE = 100  # of a sample, at least: the interval of fewer says little

_TEMPLATES = Path(__file__).parent / "templates"
_KINDS = {
    "warc": "web archives (WARC)",
    "wat": "metadata of web archives (WAT)",
    "table": "a table",
    "webdataset": "WebDataset tars",
    "folder": "folders of images",
}
_STATED_AS_LIMITS = ("NSFW: off", "decontamination: off")  # these notes stand under Limits, in more words
_OF_LIST = re.compile(r"^fixed_size_list<.*>\[(\d+)\]$")
_TYPES = {"string": "sc:Text", "bool": "sc:Boolean", "float": "sc:Float", "double": "sc:Float"}


class CardFacts(NamedTuple):
    """What a card is made of."""

    config: CurateConfig
    counts: Counts
    summary: Mapping[str, Any]  # summary.json
    notes: Sequence[str]  # which of ALIGN's rules drop nothing in this run, and why
    digest: str = ""  # of the list of all files: SHA-256 in hex
    scores: Sequence[Score] = ()  # beside the shards
    is_grown: bool = False  # there are shards of several generations
    conditions: Mapping[str, str] = MappingProxyType({})  # of a selection, in words, by the reason of what fails
    lineage: Mapping[str, Any] | None = None  # of the manifest; None of a curation

    @property
    def name(self) -> str:
        """Name of the data set; without control characters, whatever sources are called."""
        sources = list(dict.fromkeys(each.source for each in self.config.input))
        return self.config.card.name or f"Image-text pairs from {', '.join(map(shown, sources))}"

    @property
    def purpose(self) -> str:
        """The purposes whose opposition was respected, by the curation or selections; `keep all` where none was."""
        made = lineage.from_facts(self.digest, self.lineage)
        return ", ".join(sorted(made.respected(self.config.fetch.purpose))) or "keep all"


def kinds_of_sources(config: CurateConfig) -> dict[str, list[str]]:
    """The kinds of input of each source, in words."""
    kinds = dict[str, list[str]]()
    for each in config.input:
        of_source = kinds.setdefault(each.source, [])
        of_source += [_KINDS[each.kind]] if _KINDS[each.kind] not in of_source else []
    return kinds


def origins_of_images(config: CurateConfig) -> list[str]:
    """Where images are from, in words."""
    in_hand = config.fetch.source == "archive" or any(each.has_images for each in config.input)
    return ["the inputs themselves"] * in_hand + ["the web (HTTP)"] * (config.fetch.source == "web")


def limits(facts: CardFacts) -> Iterator[str]:
    """What was not done, and what it means: sentences without markup."""
    config, kinds_of_scores = facts.config, {score.facts.get("kind") for score in facts.scores}
    unmeasured = "" if "similarity" in kinds_of_scores else ": no model has compared them with their images"
    of_captions = f"Captions are alt-texts as people and programs wrote them{unmeasured}"
    yield f"{of_captions}. They can be wrong, biased or offensive."
    unseen = "" if facts.summary.get("personal_data") else ", e-mail addresses, phone numbers or street addresses"
    yield f"Images and captions can show and name people. Nothing has looked for faces or names{unseen}."
    of_pool = "Rules on shared texts, on images with many texts and on rare words hold within this pool"
    yield f"{of_pool}: of another pool they would drop other pairs."
    if config.dedup.within_pool == "off":
        yield "Near-duplicates inside the data stay: one picture under two URLs is two images."
    if not config.decontaminate.test_sets:
        yield "No test set was kept out: results on public benchmarks may be of images that are in the data."
    if not config.image.nsfw.model:
        yield "No classifier has looked for pornographic images."
    if not config.image.blocked_hashes:
        yield "No block list of known illegal or unwanted images was held against it."


def looked_for(config: CurateConfig) -> list[str]:
    """Where this run has looked for what rights holders say."""
    kinds, found = {each.kind for each in config.input}, ["marks inside image files (IPTC/PLUS, C2PA)"]
    found += ["headers and meta elements of archived pages"] if kinds & {"warc", "wat"} else []
    found += ["robots.txt and tdmrep.json of archives"] if "warc" in kinds else []
    if config.fetch.source == "web":
        return [*found, "headers of images, robots.txt and tdmrep.json on the web"]
    return [*found, "headers of archived images"] if "warc" in kinds else found


def notations_looked_for(config: CurateConfig) -> tuple[str, ...]:
    """The notations that can be found there: in files in hand marks alone."""
    return NOTATIONS if len(looked_for(config)) > 1 else ("iptc", "c2pa")


def reservations_in_words(facts: CardFacts) -> str:
    """What was looked for of what rights holders say, and what became of it: sentences without markup."""
    left_out = sum(_opt_outs(facts.counts).values())
    places, notations = ", ".join(looked_for(facts.config)), ", ".join(notations_looked_for(facts.config))
    return (
        f"What rights holders say ({notations}) was looked for in {places}. Pairs left out for it: {left_out:,} "
        f"(purpose: {facts.purpose}). The column preferences has what was said of the "
        "others, where and when: empty where nothing was found, null where nobody looked."
    )


def personal_in_words(facts: CardFacts) -> str:
    """How many captions have personal data, in a sentence; empty where nobody looked."""
    if not (personal := facts.summary.get("personal_data")):
        return ""
    of_all = personal["rates"][""]
    shares = ", ".join(f"{words} {rate(of_all[kind])}" for kind, words in KINDS.items())
    return f"Of {of_all['captions']:,} captions, drawn by key, so many have (95 % intervals of Wilson): {shares}."


def model_of(score: Score) -> str:
    """What a score rests on, as its settings name it, without the folders that it was in."""
    settings = score.facts.get("settings", {})
    models = [str(settings[name]) for name in ("model", "weights", "run", "function") if settings.get(name)]
    names = (":".join(part.rstrip("/").rpartition("/")[2] for part in name.split(":")) for name in models)
    return ", ".join(map(shown, names))


def hub_licence(licence: str) -> str:
    """The Hub's identifier of a licence: "other" where it has none, "unknown" where none is given."""
    known = licence.lower()
    known = _SPDX_ON_THE_HUB.get(known, known)
    return known if known in _HUB_LICENCES.split() else "other" if known else "unknown"


def size_category(pairs: int) -> str:
    """The Hub's category of so many pairs."""
    place = max(0, len(str(pairs)) - 3)
    if place == 0:
        return "n<1K"
    return f"{_SIZES[place - 1]}<n<{_SIZES[place]}" if place < len(_SIZES) else "n>1T"


def write(folder: str, facts: CardFacts) -> dict[str, str]:
    """Write both files into a run folder; returns the SHA-256 of each, in hex."""
    readme_path, croissant_path = (storage.join(folder, name) for name in listing.CARD)
    storage.write_bytes(readme_path, readme(facts).encode())
    storage.write_json(croissant_path, croissant(facts))
    return {name: listing.digest(storage.join(folder, name)).digest for name in listing.CARD}


# For people: README.md ------------------------------------------------------------------------------------------------


def readme(facts: CardFacts) -> str:
    """The card for people, with the header for the Hub."""
    from altalign.pages import markdown  # Jinja, which commands that write no card need not wait for

    config, counts = facts.config, facts.counts
    stages = counts.stages_of_run()
    honoured = {"reservations": facts.purpose != "keep all", "robots.txt": config.fetch.honour_robots}
    last = {source: n for stage, source, reason, n in counts.to_json() if (stage, reason) == (stages[-1].value, KEPT)}
    personal = facts.summary.get("personal_data")
    filters = {"text": _as_text, "quoted": partial(json.dumps, ensure_ascii=False), "number": "{:,}".format}
    filters |= {"model": model_of, "rate": rate}
    return markdown.template(_TEMPLATES / "README.md.jinja", filters).render(
        facts=facts,
        config=config,
        card=config.card,
        summary=facts.summary,
        licence=hub_licence(config.card.licence),
        languages=list(dict.fromkeys(tag.partition("-")[0] for tag in config.card.languages)),
        size_category=size_category(facts.summary["pairs"]),
        columns=SIDE_CAR,
        words_of_columns=COLUMNS,
        sources=kinds_of_sources(config),
        kept_by_source=last,
        kinds_of_scores={score.facts.get("kind") for score in facts.scores},
        origins_of_images=origins_of_images(config),
        reservations=reservations_in_words(facts),
        honoured=[name for name, is_on in honoured.items() if is_on],
        rules_version=RULES_VERSION,
        personal=personal,
        languages_of_personal=shown_rates(personal["rates"]) if personal else [],
        kinds_of_personal=KINDS,
        stages=counts.summary(stages),
        rules=list(_rules(facts)),
        limits=list(limits(facts)),
        notes=[note for note in facts.notes if not note.startswith(_STATED_AS_LIMITS)],
        list_of_files=listing.FILE,
    )


def shown_rates(rates: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """The rates of personal data that pages show, by language: of all captions, and of languages of many."""
    return [each for each in rates.items() if not each[0] or each[1]["captions"] >= _CAPTIONS_OF_LANGUAGE]


def rate(share: Mapping[str, float]) -> str:
    """How many of a sample, as a share, with its interval."""
    value = share["found"] / share["asked"]
    percents = (100 * number for number in (value, share["least"], share["most"]))
    found, *ends = (f"{percent:.2g}" if percent < 10 else f"{percent:.0f}" for percent in percents)
    return f"{found} % ({'–'.join(ends)})"


def _as_text(text: str) -> str:
    """Text of settings as Markdown has it: nothing in it is markup."""
    escaped = html.escape(shown(text), quote=False)
    return "".join(f"\\{character}" if character in "\\`*_[]|~#" else character for character in escaped)


def _rules(facts: CardFacts) -> Iterator[dict[str, Any]]:
    """Every rule that is on or that dropped a pair, with the threshold of this run and the paper's as text."""
    config = facts.config
    for stage in facts.counts.stages_of_run():
        dropped = facts.counts.dropped(stage)
        for reason in REASONS[stage]:
            words, paper, pairs = WORDS[reason], PAPERS.get(reason), dropped.get(reason, 0)
            is_on = bool(words.threshold) and (not words.on_with or bool(value_of(config, words.on_with)))
            is_on &= reason not in OPT_OUTS  # all of them stand under Reservations
            if not pairs and not (is_on and (config.fetch.source == "web" or not reason.startswith("http_"))):
                continue
            meaning = facts.conditions.get(reason, words.in_card) if stage is Stage.SELECT else words.in_card
            row = {"stage": stage.value, "meaning": meaning, "reason": reason, "pairs": pairs}
            row |= {"here": "", "paper": "ours"}
            if words.threshold:
                value = value_of(config, words.threshold)
                if reason == DropReason.NEAR_DUPLICATE_OF_TEST_IMAGE:  # a calibration may have brought another
                    value = facts.summary.get("near_duplicates", {}).get("similarity_above", value)
                row["here"] = _number(value)
                row["paper"] = _number(paper.number) if paper else "ours"
            yield row
        for reason, meaning in (of_own(stage, config) | of_select(dropped)).items():
            row = {"stage": stage.value, "meaning": facts.conditions.get(reason, meaning), "reason": reason}
            yield {**row, "pairs": dropped.get(reason, 0), "here": "", "paper": "ours"}


def _number(value: float | str | None) -> str:
    if isinstance(value, str):
        return value
    return "no number" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:g}"


# For programs: croissant.json, as Croissant 1.1 has it ----------------------------------------------------------------


def croissant(facts: CardFacts) -> Json:
    """The card for programs, as Croissant 1.1 has it."""
    card, pairs = facts.config.card, facts.summary["pairs"]
    description = (
        f"{pairs:,} pairs of an image and its alt-text, of {facts.summary['images']:,} distinct images, "
        "curated by the method of ALIGN. Rows are in the side-cars; images, captions and rows are in the tars "
        "(WebDataset). README.md says how it was made."
    )
    files = {"side-cars": "shards/*.parquet", "tars": "shards/*.tar"}
    columns: dict[str, tuple[str | pa.DataType, str]] = {
        field.name: (field.type, COLUMNS[field.name]) for field in SIDE_CAR
    }
    records = [_records("pairs", "side-cars", columns)]
    for score in facts.scores:
        files[f"scores-{score.name}"] = f"scores/{score.name}/[0-9]*.parquet"
        model = model_of(score)
        basis = f"of kind {score.facts['kind']}{f', by {model}' if model else ''}, digest {score.facts['digest']}"
        of_score = {column: (kind, f"Score {basis}") for column, kind in score.columns.items()}
        columns = {"key": ("string", COLUMNS["key"]), **of_score}
        # every node of a card has a name of its own
        words = f"Score {score.name}, {basis}"
        records.append(_records(f"of-{score.name}", f"scores-{score.name}", columns, description=words))
    sets = []
    for name, pattern in files.items():
        named = {"@type": "cr:FileSet", "@id": name, "name": name}
        encoding = "application/x-tar" if name == "tars" else "application/x-parquet"
        sets.append({**named, "encodingFormat": encoding, "includes": pattern})
    return {
        "@context": json.loads((_TEMPLATES / "croissant_context.json").read_bytes()),
        "@type": "sc:Dataset",
        "name": facts.name,
        "description": description,
        "conformsTo": ["http://mlcommons.org/croissant/1.1", "http://mlcommons.org/croissant/RAI/1.0"],
        **_provenance(facts),
        "usageInfo": list(_of_rights(facts)),
        **_responsible(facts),
        **({"license": card.licence} if card.licence else {}),
        **({"inLanguage": card.languages} if card.languages else {}),
        "distribution": sets if pairs else [],
        "recordSet": records if pairs else [],
    }


def _of_rights(facts: CardFacts) -> Iterator[Json]:
    """What is known of the use that rights holders want; altalign has no permission to give, so there is no offer."""
    head = {"@type": "DefinedTerm", "termCode": facts.purpose, "name": "Purpose"}
    yield {**head, "description": f"{reservations_in_words(facts)} Nothing said is no permission."}
    for reason, pairs in _opt_outs(facts.counts).items():
        what = {"name": "Reservation that was respected", "description": f"{pairs:,} pairs were left out for it."}
        yield {"@type": "DefinedTerm", "termCode": reason, **what}


def _opt_outs(counts: Counts) -> Counter[str]:
    """Pairs that were left out for what rights holders say, by reason."""
    found = Counter[str]()
    for stage in counts.stages_of_run():
        found.update({reason: n for reason, n in counts.dropped(stage).items() if reason in OPT_OUTS})
    return found


def _provenance(facts: CardFacts) -> Json:
    """What a run was made of and how, as PROV has it: the runs before it, back to curations, and its sources."""

    def of_run(made: lineage.Made) -> Json:
        before = [{**entity, "identifier": each.number, **of_run(each)} for each in made.parents]
        activity = {"@type": "prov:Activity", "prov:label": f"altalign {made.operation}"}
        return {"prov:wasGeneratedBy": activity, **({"prov:wasDerivedFrom": before} if before else {})}

    entity = {"@type": "prov:Entity"}
    found: Json = {"identifier": facts.digest, **of_run(lineage.from_facts(facts.digest, facts.lineage))}
    named = [
        {**entity, "prov:label": f"{shown(name)} ({', '.join(kinds)})"}
        for name, kinds in kinds_of_sources(facts.config).items()
    ]
    found["prov:wasDerivedFrom"] = [*cast(list[Json], found.get("prov:wasDerivedFrom", [])), *named]
    program = {"@type": "prov:SoftwareAgent", "prov:label": f"altalign, rules version {RULES_VERSION}"}
    return {**found, "prov:wasAttributedTo": program}


def _responsible(facts: CardFacts) -> Json:
    """What Croissant's vocabulary for responsible AI (RAI 1.0) asks, as far as counts and settings know it."""
    counts, config = facts.counts, facts.config
    stages = counts.stages_of_run()
    named = "; ".join(f"{shown(name)} ({', '.join(kinds)})" for name, kinds in kinds_of_sources(config).items())
    scraped = config.fetch.source == "web" or any(each.kind in ("warc", "wat") for each in config.input)
    steps = list[str]()
    for stage in stages:
        reasons = ", ".join(f"{shown(reason)} {pairs:,}" for reason, pairs in counts.dropped(stage).items())
        received, kept = counts.received(stage), counts.kept(stage)
        steps.append(f"{stage.value}: {received:,} pairs received, {kept:,} kept{reasons and f'; dropped: {reasons}'}.")
    personal = personal_in_words(facts)
    return {
        "rai:dataCollection": (
            f"Images and their alt-texts, of {named}. Images are from {' and '.join(origins_of_images(config))}. "
            f"{reservations_in_words(facts)}"
        ),
        "rai:dataCollectionType": ["Web Scraping" if scraped else "Secondary Data analysis"],
        "rai:dataCollectionRawData": f"{counts.received(stages[0]):,} candidates of {named}.",
        "rai:dataPreprocessingProtocol": steps,
        "rai:dataLimitations": list(limits(facts)),
        **({"rai:personalSensitiveInformation": [personal]} if personal else {}),
    }


def _type(kind: str) -> Json:
    """What Croissant calls a column's Arrow type; a list is an embedding."""
    if size := _OF_LIST.search(kind):
        return {"dataType": "sc:Float", "isArray": True, "arrayShape": size[1]}
    return {"dataType": _TYPES.get(kind, "sc:Integer")}


def _parts(name: str, source: Mapping[str, object], kind: pa.DataType) -> Json:
    """What Croissant says of a column of groups, or of lists of groups: a field for each part of a group."""
    is_list = pa.types.is_list(kind)
    group: Any = kind.value_type if isinstance(kind, pa.ListType) else kind
    fields = [
        {
            "@type": "cr:Field",
            "@id": f"{name}/{part.name}",
            "name": part.name,
            **_type(str(part.type)),
            "source": {**source, "transform": {"jsonPath": f"$['{part.name}']"}},  # bare, `where` is an operator
        }
        for part in group
    ]
    return {**({"isArray": True} if is_list else {}), "subField": fields}


def _records(name: str, files: str, columns: Mapping[str, tuple[str | pa.DataType, str]], **about: str) -> Json:
    """The rows of a set of files; each column with its Arrow type and its description."""
    fields = list[Json]()
    for column, (kind, description) in columns.items():
        source = {"fileSet": {"@id": files}, "extract": {"column": column}}
        field: Json = {"@type": "cr:Field", "@id": f"{name}/{column}", "name": column, "description": description}
        if isinstance(kind, pa.DataType) and kind.num_fields:
            fields.append({**field, **_parts(f"{name}/{column}", source, kind)})
        else:
            fields.append({**field, **_type(str(kind)), "source": source})
    head = {"@type": "cr:RecordSet", "@id": name, "name": name, **about}
    return {**head, "key": {"@id": f"{name}/key"}, "field": fields}
