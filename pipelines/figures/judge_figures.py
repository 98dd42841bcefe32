"""The notes that `judge` takes for the audit while it reads every candidate.

Histograms of what was measured, scripts of captions, strings that the tables know by hash, and samples.
"""

from collections import Counter
from functools import partial

import pyarrow as pa

from altalign import storage
from altalign.data.audit_tables import TEXT_MEASURES
from altalign.data.reasons import Stage, Verdict
from altalign.data.schema import DROPPED
from altalign.filters import identity
from altalign.pipelines.figures import caption_scripts, frequent_strings, gallery_rows, histograms
from altalign.pipelines.figures.dropped_texts import Judged
from altalign.pipelines.run import outputs, pool
from altalign.pipelines.run.text_tables import JUDGE_SAMPLE, MEASURED_TEXTS, SEEN_STRINGS
from altalign.pipelines.run.units import Run
from altalign.rules import reason_words
from altalign.storage import parquet


class Notes:
    """The notes of a unit; `seen` has to be shown the candidates as they are measured."""

    def __init__(self, run: Run):
        self._run = run
        self.seen = frequent_strings.Seen(frequent_strings.WantedHashes.of(run))
        self._one_in = one_in(run)
        self._measures = histograms.Histograms(histograms.OF_TEXT)
        self._scripts: Counter[tuple[str, str]] = Counter()
        self._smallest = gallery_rows.Smallest(len(reason_words.of_stage(Stage.JUDGE, run.config)))
        self._samples = DROPPED.empty_table()

    def add(self, judged: Judged, verdict: Verdict) -> None:
        """Note candidates with their verdicts."""
        measured, captions = judged.measured, parquet.strings(judged.candidates, "caption")
        values = histograms.of_text(measured.words, measured.rarest, measured.images_per_text, measured.texts_per_image)
        self._measures.add(values, judged.combinations, judged.codes)
        self._scripts += caption_scripts.count(captions, verdict, judged.keys, one_in=self._one_in)

    def add_dropped(self, judged: Judged, dropped: pa.Table) -> None:
        """Note the dropped ones among candidates; `dropped` is their table."""
        chosen = self._smallest.of(judged.reasons, identity.rows_of(judged.keys, judged.dropped))
        if len(chosen):
            rows = gallery_rows.shortened(dropped.take(chosen).cast(DROPPED))
            self._samples = gallery_rows.smallest_pairs(pa.concat_tables([self._samples, rows]))

    def write(self, unit: str) -> None:
        """Write the tables of a unit."""
        MEASURED_TEXTS.write(self._run, self._measures.to_arrow(), unit)
        seen = {**self.seen.to_json(), "scripts": caption_scripts.to_json(self._scripts)}
        storage.write_json(SEEN_STRINGS.path(self._run, unit), seen)
        JUDGE_SAMPLE.write(self._run, self._samples, unit)


def conclude(run: Run) -> None:
    """Write histograms of what was measured, frequent strings, edge n-grams and scripts."""
    units = [unit["name"] for unit in pool.units(run)]
    measures = storage.each(partial(MEASURED_TEXTS.read, run), units, of=run.folder)
    outputs.write_audit(run, TEXT_MEASURES, histograms.total(measures, TEXT_MEASURES.schema))
    strings, of_scripts = frequent_strings.Strings(), Counter[tuple[str, str]]()
    for part in storage.each(storage.read_json, [SEEN_STRINGS.path(run, unit) for unit in units], of=run.folder):
        of_scripts += caption_scripts.from_json(part.pop("scripts"))
        strings.add(part)
    caption_scripts.write(run, of_scripts, one_in=one_in(run))
    frequent_strings.write(run, strings)


def one_in(run: Run) -> int:
    """One candidate in so many is looked at for scripts."""
    return gallery_rows.one_in(pool.rows(run), caption_scripts.CANDIDATES_AT_MOST)
