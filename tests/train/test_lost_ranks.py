"""Two processes of a training, one of which stops, is told to end, fails, or has a pair that is no numbers to it.

The other says so, or ends with it.
"""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from safetensors.torch import save_file

from altalign.train.data import tokenizer
from altalign.train.data.order import Order, Sampler
from altalign.train.settings.training import TokenizerSettings, TrainConfig
from altalign.train.step.learner import model_of
from tests.support.run_folders import Pair, pairs, write_run
from tests.train.test_training_run import TORCHRUN, WATCHDOG_S, lines, reached, started, written

TWO = ["torch.distributed.run", "--nproc-per-node", "2", *TORCHRUN]


@pytest.fixture
def running(tmp_path: Path) -> "tuple[Path, subprocess.Popen[str], int]":
    """A run of two ranks that has taken a step, and the process of the second."""
    write_run(tmp_path / "curated", pairs(60, images=30))
    loop = {"log_every": 1, "checkpoint_every": 100_000, "timeout_s": 15}  # ranks of a busy machine are seconds apart
    process = started([*TWO, written(tmp_path, schedule={"steps": 100_000}, loop=loop)], is_warm=False)
    reached(tmp_path, 2, process)
    return tmp_path, process, _pid_of_rank(process.pid, 1)


def _pid_of_rank(launcher: int, rank: int) -> int:
    tasks = Path(f"/proc/{launcher}/task")
    for task in tasks.iterdir():
        for number in (task / "children").read_text().split():
            if f"RANK={rank}" in Path(f"/proc/{number}/environ").read_text().split("\0"):
                return int(number)
    raise AssertionError(f"no rank {rank}")


@pytest.mark.trained
def test_a_rank_that_hangs_is_named_by_the_others_once_the_time_is_up(
    running: "tuple[Path, subprocess.Popen[str], int]",
) -> None:
    _, process, second = running
    os.kill(second, signal.SIGSTOP)
    try:
        said = ""
        assert process.stderr
        for line in process.stderr:  # the launcher gives the stopped process half a minute
            said += line
            if "run it again, it continues" in line:
                break
        assert "another process of this training has ended, or is not heard any more" in said
        assert f"rank 1 ({os.uname().nodename}, process {second}, step " in said
        assert "): it says nothing; look at what it said" in said
    finally:
        os.kill(second, signal.SIGKILL)
        process.communicate(timeout=WATCHDOG_S)


@pytest.mark.trained
def test_a_rank_that_is_told_to_end_takes_the_others_along_after_a_checkpoint(
    running: "tuple[Path, subprocess.Popen[str], int]",
) -> None:
    folder, process, second = running
    os.kill(second, signal.SIGTERM)
    process.communicate(timeout=WATCHDOG_S)
    (kept,) = (folder / "trained" / "checkpoints").iterdir()
    assert (kept / "manifest.json").is_file()
    assert json.loads((kept / "state.json").read_text())["step"] == lines(folder)[-1]["step"]


@pytest.mark.trained
def test_a_word_that_is_no_number_stops_all_ranks_at_the_step_that_has_it_on_one(tmp_path: Path) -> None:
    """The text tower starts from weights with such a word, which the last rank's share of the second batch has."""
    order, of = Order({"web": 60}, {}, 0), pairs(60)
    row = int(Sampler(order, 16).batch(1)[0][-1])
    of[row] = Pair(of[row].image, "a kite \u0436", of[row].url)
    write_run(tmp_path / "curated", of)
    captions = [pair.caption for pair in of] * 2  # a letter that is there once is no piece
    words = tokenizer.train(lambda: [captions], TokenizerSettings(vocabulary_size=400))
    words.write(str(tmp_path / "tokenizer.json"))
    changed = {
        "data": {"held_out": 0.0},
        "tokenizer": {"file": str(tmp_path / "tokenizer.json")},
        "optimizer": {"name": "sgd"},
        "loop": {"log_every": 1, "checkpoint_every": 1},
        "evaluation": {"retrieval": []},
    }
    model = model_of(TrainConfig.load(written(tmp_path, **changed)), vocabulary=words.vocabulary)
    state = {name: value for name, value in model.state_dict().items() if name.startswith("text_tower.")}
    only_there, *others = (set(words.encode([pair.caption])[0]) for pair in (of[row], *of[:row], *of[row + 1 :]))
    (number, *_) = sorted(only_there.difference(*others))
    state["text_tower.bert.embeddings.word_embeddings.weight"][number] = float("nan")
    save_file(state, tmp_path / "text.safetensors")

    config = written(tmp_path, **changed, text_tower={"weights": str(tmp_path / "text.safetensors")})
    process = started([*TWO, config])
    _, said = process.communicate(timeout=WATCHDOG_S)
    assert process.returncode
    log = tmp_path / "trained" / "log"
    shown = {line for line in said.splitlines() if line.startswith("altalign: step ")}
    assert len(shown) == 1, said  # each rank says the same
    assert "altalign: step 2: the loss is nan, at temperature " in min(shown)
    assert f"; its pairs are in {log}/not-finite-step-2-rank-*.json" in min(shown)
    named = {path.name: json.loads(path.read_text())["keys"] for path in log.glob("not-finite-*")}
    assert sorted(named) == ["not-finite-step-2-rank-0.json", "not-finite-step-2-rank-1.json"]
    assert named["not-finite-step-2-rank-1.json"][-1] == of[row].key
    assert [path.name for path in (tmp_path / "trained" / "checkpoints").iterdir()] == ["step-0000001"]
    assert [line["step"] for line in lines(tmp_path)] == [1]
