"""A disk, or the number of files it can hold, that is too small in every stage: said so, no half file, and the same
bytes once there is room.
"""

import json
import re
import subprocess
import sys
from typing import Any

import pytest

from altalign.data.stages import STAGES
from tests.end_to_end.mounts import UNSHARE, skip_where_nothing_can_be_mounted
from tests.end_to_end.runs import ROOT, environ, write_input

pytestmark = pytest.mark.faults

POINTS = 10


@pytest.fixture(scope="module", params=["pages", "files"])
def failures(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, list[dict[str, Any]]]:
    """What a run said each time, on a disk that grew; of a tmpfs too small in bytes, and of one that can hold too few
    files.
    """
    folder = tmp_path_factory.mktemp("disk")
    skip_where_nothing_can_be_mounted(folder)
    write_input(folder, rows=120)
    wanted = [*UNSHARE, sys.executable, "-m", "tests.end_to_end.filling", str(folder), "5", str(POINTS), request.param]
    done = subprocess.run(wanted, cwd=ROOT, env=environ(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return request.param, [json.loads(line) for line in done.stdout.splitlines()]


def test_a_disk_that_is_full_in_any_stage_is_one_line_and_the_run_continues_to_the_same_bytes(
    failures: tuple[str, list[dict[str, Any]]],
) -> None:
    kind, reports = failures
    *failed, finished, end = reports
    left = r"[\d,]+ bytes free" if kind == "pages" else "it holds as many files as it can"
    line = (
        rf"altalign: disk/run.*: no space left on the device.* \({left}\); make room and run the same command again, "
        r"it continues\n"
    )
    for report in failed:
        assert report["code"] == 1, report
        assert re.fullmatch(line, report["said"]), report
        assert not report["halves"], report
    assert finished["code"] == 0, finished
    assert {report["stage"] for report in failed} >= set(STAGES)
    assert end == {"differs": []}
