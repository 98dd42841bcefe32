"""The data-set card for programs: `croissant.json`, as Croissant 1.0 has it."""

import json
from collections.abc import Mapping
from pathlib import Path

from altalign.data.schema import SAMPLE
from altalign.data.scores import Score
from altalign.pipelines.card.facts import COLUMNS, CardFacts, model_of

_TYPES = {"string": "sc:Text", "bool": "sc:Boolean", "float": "sc:Float", "double": "sc:Float"}


def croissant(facts: CardFacts) -> dict[str, object]:
    """The card for programs, as Croissant 1.0 has it."""
    card, pairs = facts.config.card, facts.summary["pairs"]
    description = (
        f"{pairs:,} pairs of an image and its alt-text, of {facts.summary['images']:,} distinct images, "
        "curated by the method of ALIGN. Rows are in the side-cars; images, captions and rows are in the tars "
        "(WebDataset). README.md says how it was made."
    )
    files = [
        _files("side-cars", "application/x-parquet", "shards/*.parquet"),
        _files("tars", "application/x-tar", "shards/*.tar"),
        *(
            _files(f"scores-{each.name}", "application/x-parquet", f"scores/{each.name}/*.parquet")
            for each in facts.scores
        ),
    ]
    columns = {field.name: (str(field.type), COLUMNS[field.name]) for field in SAMPLE}
    records = [_records("pairs", "side-cars", columns), *map(_records_of_score, facts.scores)]
    return {
        "@context": json.loads((Path(__file__).parent / "templates" / "croissant_context.json").read_bytes()),
        "@type": "sc:Dataset",
        "name": facts.name,
        "description": description,
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        **({"license": card.licence} if card.licence else {}),
        **({"inLanguage": card.languages} if card.languages else {}),
        "distribution": files if pairs else [],
        "recordSet": records if pairs else [],
    }


def _files(name: str, encoding: str, pattern: str) -> dict[str, object]:
    return {"@type": "cr:FileSet", "@id": name, "name": name, "encodingFormat": encoding, "includes": pattern}


def _records(name: str, files: str, columns: Mapping[str, tuple[str, str]], description: str = "") -> dict[str, object]:
    """The rows of a set of files; each column with its Arrow type and its description."""
    fields = [
        {
            "@type": "cr:Field",
            "@id": f"{name}/{column}",
            "name": column,
            "description": about,
            "dataType": _TYPES.get(kind, "sc:Integer"),
            "source": {"fileSet": {"@id": files}, "extract": {"column": column}},
        }
        for column, (kind, about) in columns.items()
    ]
    return {
        "@type": "cr:RecordSet",
        "@id": name,
        "name": name,
        **({"description": description} if description else {}),
        "key": {"@id": f"{name}/key"},
        "field": fields,
    }


def _records_of_score(score: Score) -> dict[str, object]:
    """The columns of a score, and what they rest on in words."""
    model = model_of(score)
    basis = f"of kind {score.facts['kind']}{f', by {model}' if model else ''}, digest {score.facts['digest']}"
    columns = {
        "key": ("string", COLUMNS["key"]),
        **{column: (kind, f"Score {basis}") for column, kind in score.columns.items()},
    }
    # every node of a card has a name of its own
    return _records(f"of-{score.name}", f"scores-{score.name}", columns, f"Score {score.name}, {basis}")
