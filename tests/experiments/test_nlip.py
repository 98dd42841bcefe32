"""The pairs of the experiment on NLIP, its measure, and the warm-up that arms share."""

from pathlib import Path

import numpy as np
import pytest

from altalign.train.data.captions import is_swapped
from altalign.train.nlip import phases
from altalign.train.settings.training import TrainConfig
from experiments import nlip, plan, queue
from experiments.nlip import SHUFFLED, auc, replaced, with_shuffled

PAIRS = [(bytes([number]), f"caption {number % 40}") for number in range(50)]


def test_shuffled_pairs_have_captions_of_each_other_and_no_pair_is_lost() -> None:
    found = with_shuffled(PAIRS, 0.4)
    assert sorted(image for of in found.values() for image, _ in of) == [image for image, _ in PAIRS]
    true = dict(PAIRS)
    assert all(true[image] == caption for image, caption in found["true"])
    assert all(true[image] != caption for image, caption in found[SHUFFLED])
    assert 15 <= len(found[SHUFFLED]) <= 20
    of_shuffled = sorted(true[image] for image, _ in found[SHUFFLED])
    assert len(set(of_shuffled) & {caption for _, caption in found[SHUFFLED]}) >= 15
    assert with_shuffled(PAIRS, 0.4) == found


def test_the_area_is_that_of_counting_pairs_with_ties_as_halves() -> None:
    rng = np.random.default_rng(0)
    scores, is_positive = rng.integers(0, 6, 40).astype(float), rng.random(40) < 0.3
    above = [(a > b) + 0.5 * (a == b) for a in scores[is_positive] for b in scores[~is_positive]]
    assert auc(scores, is_positive) == pytest.approx(np.mean(above))


def test_arms_of_the_same_pairs_and_seed_share_their_warm_up_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = {job.name: job for job in plan.jobs(queue.read("nlip"))}
    kept = {name: nlip.kept_at(job) for name, job in jobs.items()}
    same = [f"{arm}-0" for arm in ("plain-20", "constant-20", "noise-20", "printed-20")]
    assert len({kept[name] for name in same}) == 1
    others = {kept[name] for name in ("noise-20-1", "noise-40-0", "art-noise-20-0", "noise-20-0")}
    assert len(others) == 4


def test_a_kept_warm_up_comes_into_the_folder_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    job = next(plan.jobs(queue.read("nlip")))
    nlip.before(job, Path("runs", job.name))
    assert not Path("runs").exists()
    Path(nlip.kept_at(job), "noise").mkdir(parents=True)
    nlip.before(job, Path("runs", job.name))
    assert Path("runs", job.name, "phases", "warm-up", "noise").is_dir()


def test_what_is_replaced_is_what_training_draws(tmp_path: Path) -> None:
    keys, rng = [f"{number * 7919:032x}" for number in range(200)], np.random.default_rng(0)
    is_shuffled = rng.random(200) < 0.2
    eps = np.where(is_shuffled, 0.8, 0.1).astype(np.float32)
    (tmp_path / "config.toml").write_text(
        '[run]\nseed = 5\n[noise]\ncaptions = "run:x"\n[schedule]\nsteps = 10\n[loop]\nglobal_batch = 64\n'
    )
    found = replaced(tmp_path, keys, eps, is_shuffled)
    seen = [
        (bool(shuffled), is_swapped(float(one), seed=5, epoch=epoch, key=key))
        for key, one, shuffled in zip(keys, eps, is_shuffled, strict=True)
        for epoch in range(4)  # 640 visits of 200 pairs
    ]
    drawn = [shuffled for shuffled, is_drawn in seen if is_drawn]
    assert found["shuffled_of_replaced"] == pytest.approx(100 * np.mean(drawn))
    assert found["replaced_of_true"] == pytest.approx(
        100 * np.mean([is_drawn for is_it, is_drawn in seen if not is_it])
    )
    assert 70 < found["replaced_of_shuffled"] < 90
    (tmp_path / "config.toml").write_text('[noise]\ncaptions = ""\n')
    assert replaced(tmp_path, keys, eps, is_shuffled) == {}


def test_every_phase_of_every_arm_is_settings() -> None:
    for job in plan.jobs(queue.read("nlip")):
        config = TrainConfig.from_values(job.settings, where=job.name)
        for phase in config.phases:
            if phase.does == "train":
                phases.of_phase(config, phase.name)
