"""Records in run.json what a stage rests on, and how long it took."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import cast

from altalign import storage
from altalign.data.stages import STAGES, RunRecord, StageRecord
from altalign.errors import AltalignError
from altalign.pipelines.opening.inputs_of_stages import Grounds
from altalign.pipelines.run.text_tables import EXTRACTED
from altalign.pipelines.run.units import Run


@contextmanager
def recording(run: Run, stage: str, grounds: Grounds) -> Iterator[None]:
    """Record in run.json what a stage rests on before it begins, and how long it took."""
    facts = cast(RunRecord, storage.read_sealed(run.path("run.json")))
    before = facts["stages"].get(stage, {})
    entry: StageRecord = {
        "digest": grounds.digest,
        "reads": dict(grounds.reads),
        "attempts": before.get("attempts", 0) + 1,
        "started": _now(),
        "finished": None,
        "seconds": before.get("seconds", 0.0),
    }
    facts["stages"][stage] = entry
    storage.write_sealed(run.path("run.json"), facts, durable=run.config.run.durable)
    begin = time.monotonic()
    try:
        yield
        entry["finished"] = _now()
        if stage == STAGES[0]:
            marks = dict(run.all_facts(EXTRACTED))
            facts["files"] = {file.path: marks[file.name].stamp for file in run.files}
    except BaseException:
        # the user has to see the first error
        _end(run, facts, entry, begin, suppressed=(OSError, AltalignError))
        raise
    _end(run, facts, entry, begin)


def _end(
    run: Run, facts: RunRecord, entry: StageRecord, begin: float, suppressed: tuple[type[Exception], ...] = ()
) -> None:
    entry["seconds"] = round(entry["seconds"] + time.monotonic() - begin, 2)
    with suppress(*suppressed):
        storage.write_sealed(run.path("run.json"), facts, durable=run.config.run.durable)


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
