"""`altalign curate --policy FILE`: what was approved, of that input; then where the result left the intervals."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from altalign import terminal
from altalign.audit_tables import DROPPED_IMAGES, FUNNEL
from altalign.pipelines.files import parquet
from altalign.pipelines.opening.find import find_run
from altalign.pipelines.run.units import Run
from altalign.pipelines.trial import policy
from altalign.pipelines.trial.outcomes import BYTES, NOT_SEEN, SHARD_BYTES
from altalign.pipelines.trial.policy import Policy
from altalign.pipelines.trial.told import short
from altalign.reasons import CURATED, KEPT, Stage
from altalign.stages import STAGES


class Outside(NamedTuple):
    """An amount that left its interval: its name, what it is, and the interval."""

    name: str
    is_now: float
    least: float
    most: float


def opened(path: str, overrides: Sequence[str]) -> Policy:
    """A policy that is approved, for the input that is there and these settings; nothing is written.

    Raises:
        UsageError: it is none, or nobody has approved it, or it is of another input or of other settings.
    """
    found = policy.read(path, overrides)
    policy.check(found, find_run(found.config, config_path=found.config_path))
    return found


def show(found: Policy, run: Run) -> None:
    """Say where a finished run left the intervals of its policy; of an unfinished one nothing."""
    if not run.is_done(STAGES[-1]):
        return
    compared, left = outside(found, run)
    out = terminal.stdout()
    for each in left:
        interval = f"{short(each.least)}–{short(each.most)}"
        line = f"outside of its interval: {each.name} {short(each.is_now)}, predicted {interval}"
        out.print(terminal.shown(line), style="yellow", highlight=False, soft_wrap=True)
    inside = f"{compared - len(left)} of {compared} amounts are in the intervals of the policy"
    out.print(f"{inside}; of 95 % intervals one in twenty misses by chance", highlight=False, soft_wrap=True)


def outside(policy: Policy, run: Run) -> tuple[int, list[Outside]]:
    """How many amounts of a finished run could be compared with the policy's, and which are outside of the interval."""
    found, compared = list[Outside](), 0
    now, said = dict(_amounts(run)), list(policy.said["predicted"])
    names = {(each["stage"], each["reason"], each["of"]) for each in said}
    not_seen = {each["of"]: each for each in said if each["stage"] == NOT_SEEN}
    for stage, reason, of in now.keys() - names:
        if of in not_seen and reason != KEPT:
            said.append({**not_seen[of], "stage": stage, "reason": reason})
    for each in said:
        name = (each["stage"], each["reason"], each["of"])
        is_now = now.get(name, 0 if name[2] in ("pairs", "images") else None)
        if is_now is None:
            continue
        compared += 1
        if not each["least"] <= is_now <= each["most"]:
            found.append(Outside(f"{name[0]} {name[1]}: {name[2]}", is_now, each["least"], each["most"]))
    return compared, found


def _amounts(run: Run) -> Iterator[tuple[tuple[str, str, str], float]]:
    """What a finished run has of all that a trial estimates, but for seconds."""
    counts = parquet.read_table(run.path("counts.parquet")).to_pylist()
    total = dict[tuple[str, str, str], int]()
    for row in counts:
        name = row["stage"], row["reason"], "pairs"
        total[name] = total.get(name, 0) + row["rows"]
    yield from total.items()
    for row in parquet.read_table(run.path(*DROPPED_IMAGES.path.split("/"))).to_pylist():
        yield (row["stage"], row["reason"], "images"), row["images"]
    for row in parquet.read_table(run.path(*FUNNEL.path.split("/"))).to_pylist():
        if row["source"] is None and row["step"] in {*map(str, CURATED), "shards"}:
            yield (row["step"], KEPT, "images"), row["images"]
            if row["step"] == Stage.FETCH.value:
                yield (row["step"], KEPT, BYTES), row["bytes"]
            if row["step"] == "shards":
                yield (row["step"], KEPT, SHARD_BYTES), row["bytes"]
