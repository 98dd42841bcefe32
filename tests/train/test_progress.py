"""Long work of training's verbs on a terminal: how much of all is done, a rate, and the time left, in 80 columns."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from altalign import cli
from altalign.train.report.metrics import Metrics
from altalign.train.settings.training import TrainConfig
from tests.support.run_folders import pairs, write_run
from tests.support.terminals import check_bars, lines_of
from tests.train.test_training_run import written

pytestmark = pytest.mark.trained

# What is asked of a trained run, and what is done while a bar shows it.
VERBS: dict[str, tuple[list[str], list[str]]] = {
    "eval": (["eval", "train.toml"], ["images", "texts"]),
    "encode": (["encode", "trained", "curated", "out"], ["encoding"]),
    "export": (["export", "trained", "exported", "--to", "align"], ["exporting"]),
    "nlip noise": (["nlip", "noise", "trained"], ["measuring"]),
    "nlip concepts": (
        ["nlip", "concepts", "curated", "--out", "concepts", "--model", "trained", "--words", "words", "--at-least=0"],
        ["encoding", "naming concepts"],
    ),
}
SOFT_CAP = """
import numpy
from altalign import terminal
from altalign.train.data import soft_cap
terminal.open_streams()
soft_cap.counts(numpy.ones(99), numpy.arange(198, dtype="u8").reshape(99, 2), penalty=1.0)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of 2 steps on 40 pairs, its settings, and nouns."""
    made = tmp_path_factory.mktemp("progress")
    write_run(made / "curated", pairs(40, images=20))
    of_align = {"embedding_width": 0, "width": 0.5, "depth": 0.5}
    settings = written(made, schedule={"steps": 2}, loop={"checkpoint_every": 1}, image_tower=of_align)
    assert cli.main(["train", settings]) == 0
    (made / "words").write_text("kite\ncaption\n", encoding="utf-8")
    return made


@pytest.mark.parametrize("verb", VERBS)
def test_long_work_has_a_bar_with_a_rate_and_the_time_left(verb: str, folder: Path) -> None:
    argv, named = VERBS[verb]
    lines = lines_of(folder, *argv)
    assert not [line for line in lines if line.startswith("altalign: ")], lines
    check_bars(lines, *named)


def test_draws_of_soft_cap_sampling_have_a_bar(folder: Path) -> None:
    check_bars(lines_of(folder, "-c", SOFT_CAP), "drawing")


def test_steps_without_a_line_of_metrics_are_shown_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("altalign.train.report.metrics._ON_TERMINAL_EVERY_S", 0.0)  # each, however fast they are
    config = TrainConfig.from_values(
        {"run": {"folder": str(tmp_path)}, "data": {"runs": ["a"]}, "schedule": {"steps": 50, "warmup_steps": 1}},
        where="test",
    )
    out = io.StringIO()
    console = Console(file=out, width=80, force_terminal=True, color_system=None)
    metrics = Metrics(config, first_step=0, console=console)
    metrics.passed(1)
    metrics.began(1)
    metrics.passed(2)
    metrics.write(3, {"loss": 2.0})
    metrics.passed(4)
    metrics.close()
    first, second, third, fourth = (line.rstrip() for line in out.getvalue().split("\r")[:-1])
    assert first == "step 1 of 50"
    assert second == "step 2 of 50, 0:00:00 left"
    assert third.startswith("step 3 of 50, 0:00:00 left, ")
    assert third.endswith(" samples/s, loss 2.0000")
    assert fourth == third.replace("step 3", "step 4")
