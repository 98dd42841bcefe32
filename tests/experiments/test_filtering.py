"""The pairs of the experiment on data filtering, which sets each run trains on, and its measure."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from experiments import filtering, plan, queue
from experiments.data import Pair
from experiments.nlip import SHUFFLED

PAIRS: list[Pair] = [(bytes([number]), f"caption {number}") for number in range(200)]


@pytest.fixture(autouse=True)
def drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filtering, "drawn", lambda _: PAIRS)  # without drawing 4,000 scenes


def test_the_clean_part_and_the_pool_share_no_pair_and_half_of_the_pool_is_shuffled() -> None:
    clean, rest = filtering.parted("scenes")
    assert len(clean) == 50
    assert sorted(clean + rest) == sorted(PAIRS)
    pool = filtering._pool("scenes")  # pyright: ignore[reportPrivateUsage]
    assert sorted(image for of in pool.values() for image, _ in of) == sorted(image for image, _ in rest)
    assert len(pool[SHUFFLED]) == 75
    assert filtering.parted("scenes") == (clean, rest)


def test_a_run_trains_on_what_the_encoder_of_its_own_seed_selected() -> None:
    jobs = {job.name: job for job in plan.jobs(queue.read("filtering"))}
    for seed in (0, 3):
        runs = jobs[f"scenes-selected-{seed}"].settings["data"]["runs"]
        assert runs == ["data/scenes-clean", f"data/scenes-selected-{seed}"]
    assert {name for job in jobs.values() for name in job.sets} <= filtering.SETS.keys()


def test_the_measure_is_the_share_of_true_pairs_of_the_pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    job = next(job for job in plan.jobs(queue.read("filtering")) if job.arm == "scenes-selected")
    for name, sources in (("scenes-clean", ["clean"] * 3), ("scenes-selected-0", ["true", "true", SHUFFLED, "true"])):
        place = tmp_path / "data" / name / "shards" / "00000.parquet"
        place.parent.mkdir(parents=True)
        pq.write_table(pa.table({"source": sources}), place)
    assert filtering.measured(job, Path()) == {"true": 0.75}
