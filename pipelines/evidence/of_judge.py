"""The notes that `judge` takes for the audit while it reads every candidate.

Combinations of what was measured, scripts of captions, strings that the tables know by hash, and samples.
"""

from collections import Counter

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from altalign import reason_words, storage
from altalign.audit_tables import PAIRS_JOINT, TEXT_JOINT
from altalign.filters import identity
from altalign.pipelines.evidence import caption_scripts, frequent_strings, gallery_rows, pairs_joint
from altalign.pipelines.evidence.text_joint import JointCounts
from altalign.pipelines.files import parquet
from altalign.pipelines.run import outputs, pool
from altalign.pipelines.run.artefacts.judged import GroupedPartition, JudgedUnit
from altalign.pipelines.run.units import Run
from altalign.pipelines.stages.dropped_texts import Judged
from altalign.reasons import Stage, Verdict
from altalign.schema import DROPPED

_FEW_BYTES = 1 << 20  # larger samples of a batch are thinned at once: one pair may have all rows of a batch
_MANY_BYTES = 32 << 20  # so are all samples so far: rows may be long, and batches of them many


class Notes:
    """The notes of a unit; `seen` has to be shown the candidates as they are measured."""

    def __init__(self, run: Run):
        self.seen = frequent_strings.Seen(frequent_strings.WantedHashes.of(run))
        self._one_in = one_in(run)
        self._joint: list[JointCounts] = []
        self._scripts: Counter[tuple[str, str]] = Counter()
        self._smallest = gallery_rows.Smallest(len(reason_words.of_stage(Stage.JUDGE, run.config)))
        self._samples, self._bytes = [DROPPED.empty_table()], 0

    def add(
        self,
        candidates: pa.RecordBatch,
        verdict: Verdict,
        keys: npt.NDArray[np.uint8],
        combinations: npt.NDArray[np.int64],
    ) -> None:
        """Note n candidates with their verdicts, keys (uint8[n, 16]) and combinations (int64[n])."""
        self._joint.append(JointCounts.of(combinations))
        captions = parquet.strings(candidates, "caption")
        self._scripts += caption_scripts.count(captions, verdict, keys, one_in=self._one_in)

    def add_dropped(self, judged: Judged, dropped: pa.Table) -> None:
        """Note the dropped ones among candidates; `dropped` is their table."""
        chosen = self._smallest.of(judged.reasons, identity.rows_of(judged.keys, judged.dropped))
        if len(chosen):
            rows = gallery_rows.shortened(dropped.take(chosen).cast(DROPPED))
            self._samples.append(rows if rows.nbytes < _FEW_BYTES else gallery_rows.smallest_pairs(rows))
            self._bytes += self._samples[-1].nbytes
            if self._bytes > _MANY_BYTES:
                self._samples = [gallery_rows.smallest_pairs(pa.concat_tables(self._samples))]
                self._bytes = 0

    def write(self, files: JudgedUnit) -> None:
        """Write the files of a unit."""
        storage.write_bytes(files.joint, JointCounts.total(self._joint).to_bytes())
        storage.write_json(files.seen, {**self.seen.to_json(), "scripts": caption_scripts.to_json(self._scripts)})
        parquet.write(files.samples, gallery_rows.smallest_pairs(pa.concat_tables(self._samples)), DROPPED)


def conclude(run: Run) -> None:
    """Write joint counts by source, distinct pairs by combination, frequent strings, edge n-grams and scripts."""
    by_source: dict[str, list[str]] = {}
    for unit in pool.units(run):
        by_source.setdefault(run.source_of(unit["file"]), []).append(JudgedUnit(run, unit["name"]).joint)
    tables = [_total(run, paths).to_arrow(source) for source, paths in sorted(by_source.items())]
    outputs.write_audit(run, TEXT_JOINT, pa.concat_tables([TEXT_JOINT.schema.empty_table(), *tables]))
    paths = [GroupedPartition(run, name).pairs for name in run.finished(GroupedPartition.step)]
    outputs.write_audit(run, PAIRS_JOINT, pairs_joint.to_arrow(_total(run, paths)))
    strings, of_scripts = frequent_strings.Strings(), Counter[tuple[str, str]]()
    paths = [JudgedUnit(run, unit["name"]).seen for unit in pool.units(run)]
    for part in storage.each(storage.read_json, paths, of=run.folder):
        of_scripts += caption_scripts.from_json(part.pop("scripts"))
        strings.add(part)
    caption_scripts.write(run, of_scripts, one_in=one_in(run))
    frequent_strings.write(run, strings)


def _total(run: Run, paths: list[str]) -> JointCounts:
    return JointCounts.total(map(JointCounts.from_bytes, storage.each(storage.read_bytes, paths, of=run.folder)))


def one_in(run: Run) -> int:
    """One candidate in so many is looked at for scripts."""
    return gallery_rows.one_in(pool.rows(run), caption_scripts.CANDIDATES_AT_MOST)
