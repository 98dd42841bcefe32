"""What the experiment on ALIGN's rules trains on: the pool of crawl.py as it is, by each rule alone, and by all.

Every set is curated from the same tables, with ALIGN's numbers, and stored small. What a rule drops is known by source.
"""

import json
from collections import Counter
from functools import cache, partial, reduce
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from altalign.errors import AltalignError
from altalign.settings.common import merged
from experiments.crawl import RECIPE, TRUE, tables
from experiments.data import Pair, curated_tables, table
from experiments.plan import Job
from experiments.zerovl import SIDE_PX, clothes

# ALIGN's vocabulary is of the 100 million n-grams that its raw pool has most often. This one is about as many as this
# pool has at least twice, so that an n-gram is rare where it is there once: the least that the rule can ask for.
VOCABULARY = 12_000
RULES: dict[str, dict[str, Any]] = {
    "text_too_short": {"text": {"words_at_least": 3}},
    "text_too_long": {"text": {"words_at_most": 20}},
    "text_on_too_many_images": {"text": {"images_per_text_at_most": 10}},
    "text_has_rare_ngram": {"text": {"vocabulary_size": VOCABULARY}},
    "image_has_too_many_texts": {"image": {"texts_per_image_at_most": 1_000}},
    "image_too_small": {"image": {"short_side_above_px": 200}},
    "image_too_elongated": {"image": {"aspect_ratio_below": 3.0}},
    "near_duplicate_of_test_image": {"decontaminate": {"similarity_above": 0.975}},
}
OURS = {"near_duplicate_in_pool": {"dedup": {"within_pool": "keep_one_image"}}}
ALWAYS = "pair_repeated"  # the rule that every curation has


def _curated(rules: dict[str, Any], folder: Path, *, sources: str = "*.parquet") -> None:
    """Curate the pool, or some of its sources."""
    place = tables(folder.parent)
    more: dict[str, Any] = {"shards": {"resize_short_side_px": SIDE_PX}}
    if "decontaminate" in rules:
        tests = sorted((place / "tests").glob("*.parquet"))
        more["decontaminate"] = {"test_sets": [{"name": path.stem, "path": str(path)} for path in tests]}
    found = {path.stem: path for path in [place / f"{TRUE}.parquet", *sorted(place.glob(sources))]}
    curated_tables(folder, found, merged(rules, more))


def _leaked(rules: dict[str, Any], folder: Path) -> None:
    """Curate the true pairs and copies of test images, of each way."""
    _curated(rules, folder, sources="copies/*.parquet")


def _test(name: str, folder: Path) -> None:
    curated_tables(
        folder,
        {name: tables(folder.parent) / "tests" / f"{name}.parquet"},
        {"shards": {"resize_short_side_px": SIDE_PX}},
    )


def _clothes(folder: Path) -> None:
    """Test photographs with their kinds, and the file that says how they are measured."""
    photographs: list[Pair] = list(clothes("test"))
    table(folder / "photographs.parquet", photographs)
    kinds = sorted({kind for _, kind in photographs})
    (folder / "kinds.txt").write_text("\n".join(kinds) + "\n", encoding="utf-8")
    said = {
        "task": "zero_shot",
        "name": "clothes",
        "path": f"data/{folder.name.removesuffix('.partial')}/photographs.parquet",
        "label_column": "caption",
        "classes": f"data/{folder.name.removesuffix('.partial')}/kinds.txt",
        "templates": ["a photo of {}"],
    }
    lines = "\n".join(f"{name} = {json.dumps(value)}" for name, value in said.items())
    (folder / "sets.toml").write_text(f"[[set]]\n{lines}\n", encoding="utf-8")


SETS = {
    "none": partial(_curated, {}),
    **{name: partial(_curated, rules) for name, rules in (RULES | OURS).items()},
    "all": partial(_curated, reduce(merged, RULES.values())),
    "true": partial(_curated, {}, sources=f"{TRUE}.parquet"),
    "leaked": partial(_leaked, {}),
    "decontaminated": partial(_leaked, RULES["near_duplicate_of_test_image"]),
    **{name: partial(_test, name) for name in ("test-scenes", "test-clip-art", "leaked-scenes", "leaked-clip-art")},
    "test-clothes": _clothes,
}

VARIANTS: dict[str, Any] = {}


def before(job: Job, _run_folder: Path) -> None:
    """See that an arm of as many pairs as a rule leaves has as many: what it names beside its sets is that rule's set.

    Raises:
        AltalignError: it has not.
    """
    if pairs := job.settings["data"].get("pairs"):
        (beside,) = (name for name in job.sets if name in {"all", *RULES, *OURS})
        if pairs != (kept := _pairs(beside).total()):
            raise AltalignError(f"{job.arm}: [data] pairs = {pairs}, but {beside} has {kept}; write that")


def measured(job: Job, _run_folder: Path) -> dict[str, float]:
    """What rules dropped, against the truth: of a run's own set."""
    name = Path(job.settings["data"]["runs"][0]).name
    kept = _pairs(name)
    found = {"pairs": float(kept.total()), "true": 100 * kept[TRUE] / kept.total()}
    if name in ("true", "leaked"):
        return found
    if name == "decontaminated":
        return found | _against(_pairs("leaked"), kept, set(_pairs("leaked")) - {TRUE})
    rules = {name} if name in RULES | OURS else {ALWAYS, *RULES} if name == "all" else {ALWAYS}
    meant = {kind for kind, of in RECIPE["kinds"].items() if rules & set(of["rules"])}
    return found | _against(_pairs("none") if name in RULES | OURS else _pool(), kept, meant)


def _against(pool: Counter[str], kept: Counter[str], meant: set[str]) -> dict[str, float]:
    """Precision and recall in percent; recall also of each source that is meant."""
    dropped = pool - kept
    noise = dropped.total() - dropped[TRUE]
    return {
        "precision": 100 * noise / dropped.total() if dropped else 0.0,
        "recall": 100 * sum(dropped[kind] for kind in meant) / sum(pool[kind] for kind in meant),
        **{f"recall/{kind}": 100 * dropped[kind] / pool[kind] for kind in meant},
    }


@cache
def _pairs(name: str) -> Counter[str]:
    """The pairs of a set by source."""
    shards = sorted(Path("data", name, "shards").glob("*.parquet"))
    return Counter(
        source for path in shards for source in pq.read_table(path, columns=["source"])["source"].to_pylist()
    )


@cache
def _pool() -> Counter[str]:
    """The pairs of the pool by source, before any curation."""
    return Counter({path.stem: pq.read_metadata(path).num_rows for path in Path("crawl").glob("*.parquet")})
