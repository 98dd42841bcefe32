"""The measurements themselves, on programs that use a known amount."""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from benchmarks.processes import PROC, ProgramError, measure

needs_proc = pytest.mark.skipif(not PROC.is_dir(), reason="memory and files are read from /proc")
ON_DISK = "/var/tmp"
BURN = "import time\nwhile time.process_time() < 0.6: pass"
# looked for every fifth of a second, on machines with other work
HOLD = "import time\ndata = b'1' * 200_000_000\nwhile time.process_time() < 2: pass"


def python(code: str) -> list[str]:
    return [sys.executable, "-S", "-c", code]


def of_a_child(code: str) -> list[str]:
    return python(f"import subprocess, sys\nsubprocess.run([sys.executable, '-S', '-c', {code!r}], check=True)")


def test_cpu_seconds_are_those_of_the_whole_tree(tmp_path: Path):
    figures, _ = measure(of_a_child(BURN), tmp_path)
    assert 0.6 <= figures["cpu_s"] < 5
    assert figures["wall_s"] > 0
    assert figures["cores_busy"] == pytest.approx(figures["cpu_s"] / figures["wall_s"])


@needs_proc
def test_cpu_seconds_of_what_outlives_the_program_a_little_count_too(tmp_path: Path):
    figures, _ = measure(
        python(f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-S', '-c', {BURN!r}])"), tmp_path
    )
    assert 0.6 <= figures["cpu_s"] < 5


@needs_proc
def test_memory_is_that_of_the_whole_tree(tmp_path: Path):
    figures, _ = measure(of_a_child(HOLD), tmp_path)
    assert 200e6 < figures["peak_bytes"] < 1e9
    assert 200e6 < figures["peak_unmapped_bytes"] <= figures["peak_bytes"]


@needs_proc
def test_pages_of_a_mapped_file_are_resident_and_yet_left_out():
    code = (
        "import mmap, os\nm = mmap.mmap(os.open('mapped', os.O_RDONLY), 0, "
        f"prot=mmap.PROT_READ)\nsum(m[::4096])\n{BURN}"
    )
    with TemporaryDirectory(dir=ON_DISK) as folder:  # a file in memory stays there, mapped or not
        Path(folder, "mapped").write_bytes(b"1" * 100_000_000)
        figures, _ = measure(python(code), Path(folder))
    assert figures["peak_bytes"] > 100e6 > figures["peak_unmapped_bytes"]


def test_what_a_program_prints_is_handed_on(tmp_path: Path):
    _, output = measure(python("import sys\nprint('out', flush=True)\nprint('err', file=sys.stderr)"), tmp_path)
    assert output == "out\nerr\n"


def test_a_program_that_fails_is_named_with_the_end_of_its_output(tmp_path: Path):
    with pytest.raises(ProgramError, match=r"ended with 3\nno such thing"):
        measure(python("print('no such thing')\nraise SystemExit(3)"), tmp_path)


def test_a_program_that_is_not_there_is_named_with_what_brings_it(tmp_path: Path):
    python = tmp_path / ".venv-readers" / "bin" / "python"
    with pytest.raises(ProgramError, match=f"{python}: no such program; `make bench` makes"):
        measure([str(python), "-c", ""], tmp_path)
