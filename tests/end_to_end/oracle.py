"""Whole runs held against the plain reference: a run folder into facts, and what those have to be.

What is expected comes from tests/reference alone; of the code under test only hashes are taken, which name strings in
tables.
"""

import contextlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tomli_w

from altalign.cli import main
from altalign.data.reasons import CURATED, KEPT, REASONS, DropReason, Stage
from altalign.filters.identity import image_hash
from altalign.filters.one_caption import hash_of_bigram, hash_of_word
from altalign.settings.curate import TextSettings
from tests.end_to_end.inputs import Part, Picture
from tests.filters.plain_words import hash_of_text
from tests.reference.curation import Curation, ImageFacts, Outcome, Settings, Tables
from tests.support.curations import rows_in, summary

STAGES = CURATED
# What is told of a dropped row; a file's name and offset belong to broken records alone.
COLUMNS = (
    "key",
    "image_id",
    "image_url",
    "caption",
    "page_url",
    "source",
    "source_key",
    "extra",
    "stage",
    "reason",
    "failed",
    "kept_key",
    "words",
    "images_per_text",
    "texts_per_image",
    "http_code",
    "width",
    "height",
    "nsfw_score",
    "similarity",
    "test_set",
    "test_image",
)


# Runs -----------------------------------------------------------------------------------------------------------------


def curate(
    folder: Path, inputs: list[dict[str, Any]], settings: Settings, *args: str, shards: Mapping[str, Any] | None = None
) -> Path:
    """Run the command in a folder that holds the inputs; returns the run's folder."""
    text = {name: getattr(settings, name) for name in TextSettings.model_fields if hasattr(settings, name)}
    image = {
        name: getattr(settings, name)
        for name in ("short_side_above_px", "aspect_ratio_below", "texts_per_image_at_most", "pixels_at_most")
    }
    if settings.blocked_hashes:
        (folder / "blocked.txt").write_text(
            "".join(f"{each}\n" for each in sorted(settings.blocked_hashes)), encoding="utf-8"
        )
        image["blocked_hashes"] = ["blocked.txt"]
    config = {
        "run": {"folder": "run"},
        "input": inputs,
        "text": text,
        "image": image,
        "shards": {"samples_per_shard": 7, **(shards or {})},
    }
    (folder / "config.toml").write_text(tomli_w.dumps(config), encoding="utf-8")
    with contextlib.chdir(folder):
        code = main(["curate", "config.toml", *args])
    run = folder / "run"
    is_empty = (run / "manifest.json").exists() and not summary(run)["pairs"]
    if code != (1 if is_empty else 0):
        raise AssertionError(f"curate ended with {code} in {folder}")
    return run


def read_dropped(run: Path, stage: Stage) -> list[dict[str, Any]]:
    """Every row of dropped/STAGE but broken records."""
    files = sorted((run / "dropped" / stage.value).glob("*.parquet"))
    return [row for path in files if not path.name.startswith("broken-") for row in pq.read_table(path).to_pylist()]


def read_sidecars(run: Path) -> list[dict[str, Any]]:
    """The rows of all shards, in their order."""
    return rows_in(run / "shards")


def read_survivors(run: Path) -> list[dict[str, Any]]:
    """What judge kept, in order of (image_id, key)."""
    rows = [
        row
        for path in sorted((run / "work" / "judge" / "grouped").glob("*.parquet"))
        for row in pq.read_table(path).to_pylist()
    ]
    return [{**row, "key": row["key"].hex(), "image_id": row["image_id"].hex()} for row in rows]


def dropped_row(outcome: Outcome, facts: ImageFacts | None) -> dict[str, Any]:
    """The row of dropped/ that an outcome of the reference stands for."""
    measured = (
        {"width": facts.width, "height": facts.height} if facts is not None and outcome.stage is Stage.IMAGE else {}
    )
    if outcome.stage is not Stage.EXTRACT:
        measured |= {"words": outcome.words}
    own = {name: getattr(outcome.candidate, name) for name in ("page_url", "source", "source_key", "extra")}
    same = {
        name: getattr(outcome, name)
        for name in ("key", "image_id", "image_url", "caption", "kept_key", "images_per_text", "texts_per_image")
    }
    return {
        **dict.fromkeys(COLUMNS),
        **same,
        **own,
        "stage": outcome.stage.value,
        "reason": str(outcome.reason),
        "failed": [str(reason) for reason in outcome.failed],
        **measured,
    }


def assert_same(found: Iterable[Any], expected: Iterable[Any], what: str) -> None:
    """Two multisets are the same; says what only one of them has."""
    have, want = Counter(map(_hashable, found)), Counter(map(_hashable, expected))
    if have != want:
        lines = [f"{what}: {len(list(have.elements()))} found, {len(list(want.elements()))} expected"]
        lines += [
            f"  only {who}: {each!r}"
            for who, more in (("in the run", have - want), ("expected", want - have))
            for each in list(more)[:5]
        ]
        raise AssertionError("\n".join(lines))


def _hashable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return tuple((name, _hashable(each)) for name, each in value.items())
    return tuple(map(_hashable, value)) if isinstance(value, list) else value


KEPT_COLUMNS = (
    *("image_id", "key", "image_url", "caption", "page_url", "source", "source_key", "extra", "words"),
    "found_sha256",
)


def assert_dropped(run: Path, stage: Stage, expected: Iterable[Mapping[str, Any]]) -> None:
    """dropped/STAGE has these rows, in any order."""
    found = [{name: row[name] for name in COLUMNS} for row in read_dropped(run, stage)]
    assert_same(found, [{name: row[name] for name in COLUMNS} for row in expected], stage)


def assert_judged(run: Path, curation: Curation, parts: Sequence[Part]) -> None:
    """Extract and judge: every dropped row with all that was measured, and exactly the rows that stay."""
    dropped = [outcome for outcome in curation.dropped if not outcome.candidate.broken]
    for stage in (Stage.EXTRACT, Stage.JUDGE):
        assert_dropped(run, stage, [dropped_row(outcome, None) for outcome in dropped if outcome.stage is stage])
    gone = {outcome.candidate.position for outcome in curation.dropped if outcome.stage is Stage.EXTRACT}
    pools: list[list[int]] = []  # positions of each file's candidates that extract keeps
    first = 0
    for part in parts:
        pools.append([position for position in range(first, first + len(part.candidates)) if position not in gone])
        first += len(part.candidates)
    found = [
        (
            row["image_id"],
            row["key"],
            row["image_url"],
            row["caption"],
            row["page_url"],
            row["words"],
            pools[row["file"]][row["row"]],
        )
        for row in read_survivors(run)
    ]
    stay = [*curation.kept, *(outcome for outcome in dropped if outcome.stage in (Stage.FETCH, Stage.IMAGE))]
    expected = [
        (o.image_id, o.key, o.image_url, o.caption, o.candidate.page_url, o.words, o.candidate.position) for o in stay
    ]
    expected.sort(key=lambda row: (row[0] or "", row[1]))
    assert_same(found, expected, "kept by judge")
    if found != expected:
        raise AssertionError("what judge kept is not in order of (image_id, key)")


def assert_finished(run: Path, curation: Curation, images: Mapping[str, Picture]) -> None:
    """Fetch, image and write: dropped rows, shards in their order, counts and summary."""
    facts = {identity: picture.facts for identity, picture in images.items()}
    for stage in (Stage.FETCH, Stage.IMAGE):
        assert_dropped(
            run, stage, [dropped_row(o, facts.get(o.identity or "")) for o in curation.dropped if o.stage is stage]
        )
    found = [tuple(row[name] for name in KEPT_COLUMNS) for row in read_sidecars(run)]
    expected = [
        (
            o.image_id,
            o.key,
            o.image_url or None,
            o.caption,
            o.candidate.page_url or None,
            o.candidate.source,
            o.candidate.source_key,
            o.candidate.extra,
            o.words,
            images[o.identity or ""].sha256,
        )
        for o in curation.kept
    ]
    assert_same(found, expected, "kept")
    if found != expected:
        raise AssertionError("the shards are not in order of (image_id, key)")
    assert_counts(run, curation)


def assert_counts(run: Path, curation: Curation) -> None:
    """counts.parquet, row by row, and summary.json."""
    orders = {stage.value: {reason: at for at, reason in enumerate([KEPT, *REASONS[stage]])} for stage in Stage}
    ordered = sorted(
        curation.counts.items(),
        key=lambda item: (list(orders).index(item[0][0]), item[0][1], orders[item[0][0]][item[0][2]]),
    )
    found = pq.read_table(run / "counts.parquet").to_pylist()
    expected = [
        {"stage": stage, "source": source, "reason": reason, "rows": rows} for (stage, source, reason), rows in ordered
    ]
    if found != expected:
        assert_same(found, expected, "counts")
        raise AssertionError("counts.parquet is not in order of stages, sources and reasons")
    stages = []
    for stage in STAGES:
        of = {
            reason: sum(n for (s, _, r), n in curation.counts.items() if (s, r) == (stage.value, reason))
            for reason in (KEPT, *REASONS[stage])
        }
        dropped = {str(reason): n for reason, n in of.items() if n and reason != KEPT}
        stages.append({"stage": stage.value, "received": sum(of.values()), "kept": of[KEPT], "dropped": dropped})
    size = sum(path.stat().st_size for path in (run / "shards").glob("*.tar"))
    summary = {
        "stages": stages,
        "pairs": len(curation.kept),
        "images": len({outcome.image_id for outcome in curation.kept}),
        "bytes": size,
    }
    read = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    personal = read.pop("personal_data", {"rates": {"": {"captions": 0}}})
    looked_at, pairs = personal["rates"][""]["captions"], len(curation.kept)
    if not min(1, pairs) <= looked_at <= pairs:
        raise AssertionError(f"summary.json has looked at {looked_at} of {pairs} captions")
    if read != summary:
        raise AssertionError(f"summary.json is {read}, expected {summary}")


# Tables ---------------------------------------------------------------------------------------------------------------


def hash_of_ngram(ngram: str) -> int:
    """Of a unigram, or of a bigram written with a space."""
    return hash_of_bigram(*ngram.split(" ")) if " " in ngram else hash_of_word(ngram)


def hashes_of_images(identities: Iterable[str]) -> list[int]:
    """Of image identities."""
    return image_hash(pa.array(list(identities), pa.string())).tolist()


def log2_in_8_bits(count: int) -> int:
    """Eight times log2 of a count, rounded to the nearest, 255 at most."""
    code = 0
    while code < 255 and count**16 >= 2 ** (2 * (code + 1) - 1):
        code += 1
    return code


def assert_table(run: Path, name: str, counts: str, expected: Mapping[int, int], facts: Mapping[str, Any]) -> None:
    """One table: sorted hashes, a count beside each, and what its JSON says."""
    hashes, beside = np.load(run / "tables" / f"{name}.npy"), np.load(run / "tables" / f"{name}_{counts}.npy")
    if hashes.dtype != np.uint64 or len(hashes) != len(beside) or not (hashes[1:] > hashes[:-1]).all():
        raise AssertionError(f"{name}: not sorted, distinct uint64 hashes with a count each")
    assert_same(zip(hashes.tolist(), beside.tolist(), strict=True), expected.items(), name)
    said = json.loads((run / "tables" / f"{name}.json").read_text(encoding="utf-8"))
    if {key: said.get(key) for key in facts} != facts or said["rows"] != len(hashes):
        raise AssertionError(f"{name}.json is {said}, expected {facts}")


def assert_tables(run: Path, facts: Tables, settings: Settings) -> None:
    """The three tables and the histograms."""
    vocabulary = {hash_of_ngram(ngram): log2_in_8_bits(count) for ngram, count in (facts.vocabulary or {}).items()}
    threshold = {
        "threshold": facts.threshold or 1,
        "all": facts.vocabulary is None,
        "vocabulary_size": settings.vocabulary_size,
    }
    assert_table(run, "vocabulary", "log2", vocabulary, {**threshold, "distinct": len(facts.ngrams)})
    texts = {hash_of_text(text): count for text, count in facts.over_shared_texts.items()}
    assert_table(
        run,
        "over_shared_texts",
        "counts",
        texts,
        {"threshold": settings.images_per_text_at_most, "distinct": len(facts.images_per_text)},
    )
    images = dict(zip(hashes_of_images(facts.over_captioned_images), facts.over_captioned_images.values(), strict=True))
    assert_table(
        run,
        "over_captioned_images",
        "counts",
        images,
        {"threshold": settings.texts_per_image_at_most, "distinct": len(facts.texts_per_image)},
    )
    histograms = {
        "words": facts.words_per_row,
        "images_per_text": facts.images_per_text_counts,
        "texts_per_image": facts.texts_per_image_counts,
        "ngram_count": facts.ngram_counts,
    }
    expected = {name: [[value, keys] for value, keys in sorted(counts.items())] for name, counts in histograms.items()}
    if (found := json.loads((run / "audit" / "histograms.json").read_text(encoding="utf-8"))) != expected:
        raise AssertionError(f"histograms.json is {found}, expected {expected}")


def reasons_of(curation: Curation) -> set[tuple[str, str]]:
    """(stage, reason) of all that was dropped."""
    return {(outcome.stage.value, str(outcome.reason)) for outcome in curation.dropped}


EVERY_REASON_OF_AN_ARCHIVE = {
    (stage.value, reason)
    for stage in STAGES[: STAGES.index(Stage.DECONTAMINATE)]
    for reason in REASONS[stage]
    if not reason.startswith(("http_", "opt_out_"))
    and not reason.endswith(("_too_large", "url_too_long"))  # have cases of their own
    and reason not in (DropReason.URL_BLOCKED, "text_personal", "image_nsfw", DropReason.REMOVED)
}
