"""Ten thousand hosts, half of them dead in five ways, names included: every image of the others comes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pipelines.web.dead_hosts import DEAD
from tests.support.mounts import UNSHARE, skip_where_nothing_can_be_mounted

ROOT = Path(__file__).parents[3]
HOSTS, TIMEOUT_S = 10_000, 5.0
PEAK_MB = 400  # measured: 317; docs/reference/bad-input.md
THREADS = 520  # those for names, and those that a process of Python has
MIXED = {"unanswered": {"http_timeout", "http_unreachable"}, "silent": {"http_timeout"}}


@pytest.mark.faults
def test_ten_thousand_hosts_half_of_which_are_dead(tmp_path: Path) -> None:
    skip_where_nothing_can_be_mounted(tmp_path)
    (tmp_path / "resolv.conf").write_text("nameserver 127.0.0.1\n")
    done = subprocess.run(
        [
            *[*UNSHARE, "--net", "--pid", "--fork", "--kill-child"],
            *["sh", "-ec", 'mount --bind "$0" /etc/resolv.conf; exec "$@"', str(tmp_path / "resolv.conf")],
            *[sys.executable, "-m", "tests.pipelines.web.dead_hosts", str(HOSTS), str(TIMEOUT_S)],
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    counts = {tuple(what.split(": ")): number for what, number in result["counts"].items()}
    assert {reason for kind, reason in counts if kind == "good"} == {"in hand"}
    for kind in DEAD:
        assert {reason for dead, reason in counts if dead == kind} <= MIXED.get(kind, {"http_unreachable"})
    assert sum(counts.values()) == HOSTS
    assert counts["good", "in hand"] == HOSTS // 2
    assert result["peak_mb"] < PEAK_MB
    assert result["threads"] <= THREADS
