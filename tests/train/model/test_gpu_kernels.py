import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.trained
def test_kernels_compute_what_their_twins_do() -> None:
    pytest.importorskip("triton", reason="Triton comes with torch's CUDA builds alone")
    cases = Path(__file__).with_name("interpreted_kernels.py")
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(cases)],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout
    assert " passed" in ran.stdout
    assert " skipped" not in ran.stdout
