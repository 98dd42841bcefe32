"""How much memory there is, by the files of a machine, and how work is made to fit it."""

import resource
import threading
from pathlib import Path

import pytest

from altalign.errors import UsageError
from altalign.machine import memory
from altalign.machine.memory import MB, Free


def machine(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


MEMINFO = (
    "MemTotal:       8000000 kB\nMemAvailable:   4000000 kB\nSwapFree:       1000000 kB\nHugePages_Total:       0\n"
)


def test_a_machine_without_limits_has_what_is_available_and_what_can_be_swapped(tmp_path: Path) -> None:
    there = memory.free(
        machine(
            tmp_path, {"proc/meminfo": MEMINFO, "proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.stat": "anon 5\n"}
        )
    )
    assert there == Free(5_000_000 * 1024, "the machine")


def test_a_control_group_above_ours_limits_us_too_and_cached_files_count_as_free(tmp_path: Path) -> None:
    groups = {
        "sys/fs/cgroup/a/memory.max": "2000000000",
        "sys/fs/cgroup/a/memory.current": "900000000",
        "sys/fs/cgroup/a/memory.stat": "anon 1\ninactive_file 300000000\nactive_file 100000000\n",
    }
    available = memory.free(machine(tmp_path, {"proc/meminfo": MEMINFO, "proc/self/cgroup": "0::/a/b\n", **groups}))
    assert available == Free(1_500_000_000, f"control group {tmp_path / 'sys/fs/cgroup/a'}")


def test_a_group_without_a_limit_and_a_system_without_such_files_limit_nothing(tmp_path: Path) -> None:
    machine(
        tmp_path,
        {"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": "max\n", "sys/fs/cgroup/a/memory.current": "5\n"},
    )
    assert memory.free(tmp_path) == Free(1 << 62, "nothing")


def test_address_space_is_compared_by_what_it_leaves_for_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {resource.RLIMIT_AS: 2_000_000_000, resource.RLIMIT_DATA: resource.RLIM_INFINITY}
    monkeypatch.setattr(resource, "getrlimit", lambda which: (limits[which], limits[which]))
    root = machine(
        tmp_path,
        {
            "proc/self/status": "Name:\tpython\nVmSize:\t  100000 kB\nVmData:\t 50000 kB\n",
            "proc/meminfo": "MemAvailable: 1800000 kB\n",
        },
    )
    assert memory.free(root) == Free(2_000_000_000 - 100_000 * 1024, "ulimit -v", is_address_space=True)
    limits[resource.RLIMIT_DATA] = 1_000_000_000
    assert memory.free(root) == Free(1_000_000_000 - 50_000 * 1024, "ulimit -d")


@pytest.mark.parametrize(
    ("free", "is_address_space", "workers"),
    [(8_000, False, 4), (1_000, False, 4), (999, False, 3), (550, False, 1), (1_100, True, 2)],
)
def test_there_are_as_many_workers_as_there_is_memory_for(free: int, is_address_space: bool, workers: int) -> None:  # noqa: FBT001 - of the test
    assert memory.workers_at_most(4, Free(free * MB, "a test", is_address_space)) == workers


def test_too_little_for_one_worker_is_said_before_any_work() -> None:
    with pytest.raises(UsageError) as caught:
        memory.workers_at_most(1, Free(500 * MB, "ulimit -v"))
    assert (
        str(caught.value) == "not enough memory: a curation takes 550 MB, and 500 MB are free (ulimit -v); give it more"
    )


def test_large_pieces_wait_for_one_another_and_what_never_fits_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = memory._Spare(100 * MB)
    monkeypatch.setattr(memory, "spare", lambda: shared)
    order: list[str] = []

    def second() -> None:
        with memory.reserved(60 * MB):
            order.append("second")

    with memory.reserved(60 * MB), memory.reserved(5 * MB):
        thread = threading.Thread(target=second)
        thread.start()
        order.append("first")
    thread.join()
    assert order == ["first", "second"]
    with pytest.raises(MemoryError, match="101 MB needed, 100 MB free"), memory.reserved(101 * MB):
        raise AssertionError
