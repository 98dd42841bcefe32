"""How many cores a process may use."""

import os
from pathlib import Path

import pytest

from altalign.machine.cores import cores


@pytest.fixture(autouse=True)
def _of_eight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)), raising=False)


def test_those_of_the_machine_that_it_may_run_on(tmp_path: Path) -> None:
    assert cores(tmp_path) == 8


@pytest.mark.parametrize(
    ("groups", "files", "wanted"),
    [
        ("0::/a/b\n", {"a/cpu.max": "250000 100000", "a/b/cpu.max": "max 100000"}, 3),  # two and a half
        ("0::/a/b\n", {"a/cpu.max": "250000 100000", "a/b/cpu.max": "100000 100000"}, 1),
        ("0::/a\n", {"a/cpu.max": "10000 100000"}, 1),  # a tenth
        ("0::/a\n", {"a/cpu.max": "3200000 100000"}, 8),
        ("0::/a\n", {"a/cpu.max": "what"}, 8),
    ],
)
def test_no_more_than_control_groups_give_it_time_for(
    tmp_path: Path, groups: str, files: dict[str, str], wanted: int
) -> None:
    for name, text in {
        "proc/self/cgroup": groups,
        **{f"sys/fs/cgroup/{name}": f"{text}\n" for name, text in files.items()},
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert cores(tmp_path) == wanted
