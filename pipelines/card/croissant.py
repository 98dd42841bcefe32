"""The data-set card for programs: `croissant.json`, as Croissant 1.0 has it."""

import pyarrow as pa

from altalign.pipelines.card.facts import COLUMNS, CardFacts, model_of
from altalign.schema import SAMPLE
from altalign.scores import Score


def croissant(facts: CardFacts) -> dict[str, object]:
    """The card for programs, as Croissant 1.0 has it."""
    card, pairs = facts.config.card, facts.summary["pairs"]
    described = {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "name": facts.name,
        "description": f"{pairs:,} pairs of an image and its alt-text, of {facts.summary['images']:,} distinct images, "
        "curated by the method of ALIGN. Rows are in the side-cars; images, captions and rows are in the tars "
        "(WebDataset). README.md says how it was made.",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        **({"license": card.licence} if card.licence else {}),
        **({"inLanguage": card.languages} if card.languages else {}),
        "distribution": [
            _files("side-cars", "application/x-parquet", "parquet"),
            _files("tars", "application/x-tar", "tar"),
            *(_score_files(score) for score in facts.scores),
        ]
        if pairs
        else [],
        "recordSet": [_records(), *map(_score_records, facts.scores)] if pairs else [],
    }
    return described


def _files(name: str, encoding: str, ending: str) -> dict[str, object]:
    return {
        "@type": "cr:FileSet",
        "@id": name,
        "name": name,
        "encodingFormat": encoding,
        "includes": f"shards/*.{ending}",
    }


def _records() -> dict[str, object]:
    fields = [
        {
            "@type": "cr:Field",
            "@id": f"pairs/{field.name}",
            "name": field.name,
            "description": COLUMNS[field.name],
            "dataType": "sc:Text" if pa.types.is_string(field.type) else "sc:Integer",
            "source": {"fileSet": {"@id": "side-cars"}, "extract": {"column": field.name}},
        }
        for field in SAMPLE
    ]
    return {"@type": "cr:RecordSet", "@id": "pairs", "name": "pairs", "key": {"@id": "pairs/key"}, "field": fields}


def _score_files(score: Score) -> dict[str, object]:
    files = _files(f"scores-{score.name}", "application/x-parquet", "parquet")
    return {**files, "includes": f"scores/{score.name}/*.parquet"}


def _score_records(score: Score) -> dict[str, object]:
    """The columns of a score, and what they rest on in words."""
    name, model = f"of-{score.name}", model_of(score)  # every node of a card has a name of its own
    said = f"of kind {score.facts['kind']}{f', by {model}' if model else ''}, digest {score.facts['digest']}"
    fields = [
        {
            "@type": "cr:Field",
            "@id": f"{name}/{column}",
            "name": column,
            "description": COLUMNS["key"] if column == "key" else f"Score {said}",
            "dataType": _TYPES.get(kind, "sc:Integer"),
            "source": {"fileSet": {"@id": f"scores-{score.name}"}, "extract": {"column": column}},
        }
        for column, kind in {"key": "string", **score.columns}.items()
    ]
    return {
        "@type": "cr:RecordSet",
        "@id": name,
        "name": name,
        "description": f"Score {score.name}, {said}",
        "key": {"@id": f"{name}/key"},
        "field": fields,
    }


_TYPES = {"string": "sc:Text", "bool": "sc:Boolean", "float": "sc:Float", "double": "sc:Float"}


def _prefixed(prefix: str, names: str) -> dict[str, str]:
    return {name: f"{prefix}:{name}" for name in names.split()}


_CONTEXT = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "dct": "http://purl.org/dc/terms/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "sc": "https://schema.org/",
    **_prefixed(
        "cr",
        "citeAs column equivalentProperty extract field fileProperty fileObject fileSet format includes "
        "isLiveDataset jsonPath key md5",
    ),
    **_prefixed(
        "cr",
        "parentField path recordSet references regex repeated replace samplingRate separator source subField transform",
    ),
    "conformsTo": "dct:conformsTo",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "examples": {"@id": "cr:examples", "@type": "@json"},
}
