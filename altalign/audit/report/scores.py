"""Scores of a run: what each column rests on, its quantiles, and a histogram. Of a large run some files are read."""

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from altalign.audit.report.distributions import Bin, Distribution, Names
from altalign.audit.run_folder import RunFolder
from altalign.data import scores
from altalign.data.columns import TYPES
from altalign.pages.page_text import shown

FILES_AT_MOST = 256  # shards whose scores are read
QUANTILES = (0, 1, 5, 25, 50, 75, 95, 99, 100)  # percent
BINS = 40
LABELS_AT_MOST = 30
_NAMES = Names("samples", "samples in the shards", "")


@dataclass(frozen=True)
class Column:
    """A column of a score."""

    name: str
    score: str
    kind: str
    rests_on: str  # the model, in words
    digest: str
    samples: int  # that have a value
    missing: int  # samples without one
    quantiles: list[float]  # at `QUANTILES`; empty of labels


@dataclass(frozen=True)
class Scores:
    """The scores of a run."""

    condition: str  # of the selection that made the run, or ""
    columns: list[Column]
    distributions: list[Distribution]  # of each column that has a value
    files: tuple[int, int]  # how many shards were read, of how many

    def to_json(self) -> dict[str, Any]:
        """All numbers."""
        return asdict(self)


def of_run(run: RunFolder) -> Scores | None:
    """The scores of a run but embeddings; None where it has none. Raises UnreadableError: a file of them is damaged."""
    measured = [score for score in scores.all_of(run.folder) if not score.is_embedding]
    if not measured:
        return None
    manifest, columns, drawn = run.json("manifest.json"), list[Column](), list[Distribution]()
    digests = scores.sidecars(manifest)
    every, some = list(digests), min(len(digests), FILES_AT_MOST)
    names = [every[(2 * place + 1) * len(every) // (2 * some)] for place in range(some)]  # at even distances
    for score in measured:
        schema = pa.schema([(column, TYPES[kind]) for column, kind in score.columns.items()])
        parts = [score.values(name, schema.names) for name in names if score.has(name, digests[name])]
        table = pa.concat_tables([schema.empty_table(), *parts])
        settings = score.facts.get("settings", {})
        models = [f"{name} {settings[name]}" for name in ("model", "weights", "run", "function") if settings.get(name)]
        about = score.name, str(score.facts["kind"]), ", ".join(models) or "no model", str(score.facts["digest"])[:12]
        for field in schema:
            column, quantiles = table[field.name].drop_null(), list[float]()
            if pa.types.is_floating(field.type) or pa.types.is_integer(field.type):
                numbers = column.cast(pa.float64()).to_numpy()
                numbers = numbers[~np.isnan(numbers)]
                bins, samples = _of_numbers(numbers), len(numbers)
                quantiles = np.percentile(numbers, QUANTILES).tolist() if samples else []
            else:
                bins, samples = _of_labels(column), len(column)
            columns.append(Column(field.name, *about, samples, len(table) - samples, quantiles))
            drawn += [Distribution(f"score-{field.name}", field.name, _NAMES, bins)] if bins else []
    condition = (manifest.get("lineage") or {}).get("settings", {}).get("where")
    condition = condition if isinstance(condition, str) else ""
    return Scores(condition, columns, drawn, (len(names), len(digests)))


def _of_numbers(values: npt.NDArray[np.float64]) -> tuple[Bin, ...]:
    """About `BINS` bars that begin at round values."""
    if not len(values):
        return ()
    low, high = float(values.min()), float(values.max())
    width = (high - low) / BINS or 1.0
    power = 10.0 ** np.floor(np.log10(width))
    width = next(power * step for step in (1, 2, 5, 10) if power * step >= width * (1 - 1e-9))
    edges = np.arange(np.floor(low / width), np.floor(high / width) + 1) * width
    places = np.maximum(np.searchsorted(edges, values, side="right") - 1, 0)
    counts = np.bincount(places, minlength=len(edges)).tolist()
    return tuple(Bin(f"{edge:.4g}", count, 0) for edge, count in zip(edges, counts, strict=True))


def _of_labels(column: Any) -> tuple[Bin, ...]:
    """The most frequent labels, and the others together."""
    counts = Counter(map(str, column.to_pylist()))
    ordered = sorted(counts, key=lambda name: (-counts[name], name))
    bins = [Bin(shown(name, 30).text, counts[name], 0) for name in ordered[:LABELS_AT_MOST]]
    if others := ordered[LABELS_AT_MOST:]:
        bins.append(Bin(f"{len(others):,} others", sum(counts[name] for name in others), 0))
    return tuple(bins)
