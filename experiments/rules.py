"""What the experiment on ALIGN's rules trains on: the pool of crawl.py as it is, by each rule alone, and by all.

Every set is curated from the same tables, with ALIGN's numbers, and stored small. What a rule drops is known by source.
"""

from collections import Counter
from collections.abc import Callable, Set
from functools import partial, reduce
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow.parquet as pq

from altalign.errors import AltalignError
from altalign.settings.common import merged
from experiments.crawl import RECIPE, TRUE, tables
from experiments.data import command, curated_tables
from experiments.plan import Job
from experiments.zerovl import SIDE_PX, clothes, clothes_set

# ALIGN's vocabulary is of the 100 million n-grams that its raw pool has most often. This pool has 5,466 at least twice
# and 3,427 more often, and those of the last rank are all in: rare is what is there once.
VOCABULARY = 4_500
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
SMALL: dict[str, Any] = {"shards": {"resize_short_side_px": SIDE_PX}}  # as sets are stored
PROMPTED = 'classes = "{at}/kinds.txt"\ntemplates = ["a photo of {{}}"]\n'
ALWAYS = "pair_repeated"  # the rule that every curation has


def _curated(rules: dict[str, Any], folder: Path, *, sources: str = "*.parquet") -> None:
    """Curate the pool, or some of its sources."""
    place = tables(folder.parent)
    if "decontaminate" in rules:
        tests = sorted((place / "tests").glob("*.parquet"))
        of_tests = {"test_sets": [{"name": path.stem, "path": str(path)} for path in tests]}
        rules = merged(rules, {"decontaminate": of_tests})
    found = {path.stem: path for path in [place / f"{TRUE}.parquet", *sorted(place.glob(sources))]}
    curated_tables(folder, found, merged(rules, SMALL))


def _leaked(rules: dict[str, Any], folder: Path) -> None:
    """Curate the true pairs and copies of test images, of each way."""
    _curated(rules, folder, sources="copies/*.parquet")


def _test(name: str, folder: Path) -> None:
    curated_tables(folder, {name: tables(folder.parent) / "tests" / f"{name}.parquet"}, SMALL)


def _clothes(folder: Path) -> None:
    """Photographs of clothes to be told by prompts."""
    clothes_set(folder, task="zero_shot", more=PROMPTED)
    (folder / "kinds.txt").write_text("\n".join(sorted({kind for _, kind in clothes("test")})), encoding="utf-8")


def _as_many(beside: str, folder: Path) -> None:
    """As many pairs of the pool as another set has, those of the smallest keys; both sets are made before."""
    data = folder.parent
    keys = sorted(_column(data / "none", "key"))[: _sources(data / beside).total()]
    with TemporaryDirectory() as place:
        listed = Path(place, "keys.txt")
        listed.write_text("\n".join(keys), encoding="utf-8")
        command("select", str(data / "none"), str(folder), "--list", str(listed))


SETS: dict[str, Callable[[Path], None]] = {
    "none": partial(_curated, {}),
    **{name: partial(_curated, rules) for name, rules in (RULES | OURS).items()},
    "all": partial(_curated, reduce(merged, RULES.values())),
    "none-as-all": partial(_as_many, "all"),
    "true": partial(_curated, {}, sources=f"{TRUE}.parquet"),
    "leaked": partial(_leaked, {}),
    "decontaminated": partial(_leaked, RULES["near_duplicate_of_test_image"]),
    **{name: partial(_test, name) for name in ("test-scenes", "test-clip-art", "leaked-scenes", "leaked-clip-art")},
    "test-clothes": _clothes,
}

VARIANTS: dict[str, Any] = {}


def measured(job: Job, _run_folder: Path) -> dict[str, float]:
    """What rules dropped, against the truth: of a run's own set."""
    name, data = Path(job.settings["data"]["runs"][0]).name, Path("data").resolve()
    kept = _sources(data / name)
    found = {"pairs": float(kept.total()), "true": 100 * kept[TRUE] / kept.total()}
    if name == "decontaminated":
        leaked = _sources(data / "leaked")
        return found | against(leaked, kept, leaked.keys() - {TRUE})
    if name in RULES | OURS:
        return found | against(_sources(data / "none"), kept, _meant(name))
    if name in ("none", "all"):
        whole = Counter(
            {path.stem: pq.read_metadata(path).num_rows for path in (data.parent / "crawl").glob("*.parquet")}
        )
        return found | against(whole, kept, _meant(ALWAYS, *(RULES if name == "all" else ())))
    return found


def against(pool: Counter[str], kept: Counter[str], meant: Set[str]) -> dict[str, float]:
    """What was dropped of a pool, of which sources are known: precision and recall in percent.

    Recall is that of all sources that are meant, and of each.

    Raises:
        AltalignError: nothing was dropped: a rule was off.
    """
    if not (dropped := pool - kept):
        raise AltalignError("a rule drops nothing of the pool; look at the settings of its set")
    return {
        "precision": 100 * (dropped.total() - dropped[TRUE]) / dropped.total(),
        "recall": 100 * sum(dropped[kind] for kind in meant) / sum(pool[kind] for kind in meant),
        **{f"recall/{kind}": 100 * dropped[kind] / pool[kind] for kind in meant},
    }


def _meant(*rules: str) -> Set[str]:
    """The kinds of noise that rules are meant for."""
    return {kind for kind, of in RECIPE["kinds"].items() if {*rules} & {*of["rules"]}}


def _sources(run: Path) -> Counter[str]:
    """The pairs of a set by source."""
    return Counter(_column(run, "source"))


def _column(run: Path, name: str) -> list[str]:
    """A column of all shards of a set."""
    shards = sorted((run / "shards").glob("*.parquet"))
    return [str(value) for path in shards for value in pq.read_table(path, columns=[name])[name].to_pylist()]
