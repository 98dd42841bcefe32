"""Bad input on real files, clause by clause: what costs one record, what stops the run, what is refused before any
work.
"""

import gzip
import os
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from altalign.cli import main
from altalign.data.stages import OF_FETCHED, STAGES
from tests.end_to_end.test_errors import CASES
from tests.support.archives import response
from tests.support.curations import fails, summary, tree
from tests.support.pictures import encoded

pytestmark = pytest.mark.faults

TESTS = Path(__file__).parents[1]
WARC, TABLE, TAR, PAGES, CHARSET = (
    f"pipelines/read/{name}.py"
    for name in (
        "pages/test_warc",
        "tables/test_table",
        "test_webdataset",
        "pages/test_image_elements",
        "pages/test_charset",
    )
)
PIXELS, HERE, BETWEEN = "filters/test_pixels.py", "end_to_end/test_bad_input.py", "end_to_end/test_between_stages.py"
FAULTS, FULL, SAME, REFERENCE = (
    f"end_to_end/test_{name}.py" for name in ("faults", "disk_full", "same_bytes", "against_reference")
)
COSTS = f"{HERE}: test_one_bad_record_costs_itself_alone"

# The contract on bad input, clause by clause, and what holds it: a test, or an error of tests/cases/errors.toml
# ("Group: when"). Clauses about what is not there yet (fetching over HTTP, the report) are left out.
CLAUSES: dict[str, list[str]] = {
    # One bad record costs that record: a counted reason, never a stage.
    "broken gzip member": [COSTS, f"{WARC}: test_a_broken_member_costs_that_record"],
    "unreadable line": [
        COSTS,
        f"{TABLE}: test_a_broken_json_line_costs_that_line",
        f"{TABLE}: test_an_odd_csv_row_costs_at_most_itself",
    ],
    "wrong charset": [
        COSTS,
        f"{CHARSET}: test_the_encoding_is_found_in_order",
        f"{TABLE}: test_bytes_of_parquet_that_are_no_utf8_become_replacement_characters",
    ],
    "huge attribute": [COSTS, f"{PAGES}: test_a_page_that_is_too_large_is_refused"],
    "damaged image": [
        COSTS,
        f"{PIXELS}: test_a_cut_image_is_damaged",
        f"{BETWEEN}: test_an_image_whose_header_lies_costs_itself_alone",
    ],
    "decompression bomb": [
        COSTS,
        f"{PIXELS}: test_a_bomb_is_not_decoded_but_measured",
        f"{WARC}: test_a_broken_or_exploding_body_costs_its_page",
    ],
    "hostile page": [
        "pipelines/read/pages/test_html_kernels.py: test_steps_are_in_proportion_to_bytes",
        f"{PAGES}: test_a_page_of_too_many_images_is_refused",
    ],
    # A whole file that cannot be read.
    "stops the run with its name": [
        "Input: a Parquet file that is none",
        "Input: a tar that is none",
        "Input: an archive that is none",
    ],
    "unless skip_unreadable counts it": [f"{HERE}: test_a_file_that_cannot_be_read_is_counted_where_that_is_asked_for"],
    "made readable, the run continues": [
        f"{HERE}: test_a_file_that_cannot_be_read_stops_the_run_and_made_readable_it_continues"
    ],
    # Settings that do not fit: exit code 2 before any work.
    "unknown key": ["Settings: an unknown key", "Settings: an unknown section"],
    "wrong type": ["Settings: a value of the wrong type"],
    "out of range": ["Settings: a value out of range"],
    "words_at_least above words_at_most": ["Settings: nothing would be kept"],
    "missing column": ["Input: a column that is not there", "Input: a column of a CSV file that is not there"],
    "column of another type": ["Input: a column of another type", "Input: an image column without bytes"],
    "paths that match nothing": ["Input: paths that match nothing"],
    "a folder where a file is meant": [
        "Input: a folder where a file is meant",
        "Settings: a folder in place of the settings file",
    ],
    "a run folder that is refused": ["The run folder: it holds something else", "The run folder: it is a file"],
    "a run folder that is not there": ["The run folder: it is not there", "The run folder: it is no run"],
    "before any work": ["end_to_end/test_errors.py: test_an_error_says_what_is_wrong_where_the_value_and_what_to_do"],
    # What is no error, and what is.
    "a file with no rows or no bytes is no error": [
        f"{HERE}: test_files_without_rows_or_bytes_are_named",
        f"{TABLE}: test_files_of_no_bytes_are_no_error",
    ],
    "blank lines are no rows": [f"{HERE}: test_blank_lines_are_no_rows"],
    "a gzip file cut in two cannot be read": [
        "Input: a gzip file cut in two",
        f"{TAR}: test_a_tar_cut_in_two_cannot_be_read",
    ],
    "of a cut WARC only the cut record is lost": [
        COSTS,
        f"{WARC}: test_of_a_truncated_archive_only_the_cut_record_is_lost",
    ],
    "a WARC record without a URL is broken": [COSTS],
    "a pool that leaves nothing ends well": [f"{HERE}: test_a_run_of_which_nothing_is_left_names_the_reason_and_fails"],
    # A run folder made from other settings, or from files that changed since.
    "other settings are refused, the difference named with the first stage that reads it": [
        "The run folder: its stages were made with other settings",
        "The run folder: of two changed settings the first that is read counts",
    ],
    "changed files: size": ["The run folder: an input file has another size", "The run folder: an input file more"],
    "changed files: time": ["The run folder: an input file has another time"],
    "changed files: while they are read": ["Input: a table that changes while the run reads it"],
    "--rerun runs that stage and what follows anew": [
        f"{HERE}: test_other_settings_are_refused_and_rerun_runs_from_the_first_stage_that_reads_them",
        f"{HERE}: test_a_stage_that_is_named_runs_anew_with_what_follows_and_nothing_before_it",
    ],
    "--restart everything": [f"{HERE}: test_a_file_that_changed_is_refused_and_restart_runs_everything"],
    "the engine changes no byte": [
        f"{HERE}: test_a_changed_engine_is_no_other_setting",
        f"{SAME}: test_more_workers_change_no_byte",
    ],
    # Killed, and full.
    "a killed run continues and ends with the same bytes": [
        f"{FAULTS}: test_a_command_that_is_broken_off_is_given_again",
    ],
    "a full disk is an error that says so": ["The run folder: no space is left"],
    "and the run continues after space is made": [
        f"{FULL}: test_on_a_disk_that_grows_the_run_continues_to_the_same_bytes",
        f"{HERE}: test_a_full_disk_says_so_and_the_run_continues",
    ],
    # Not of that section, but of the same kind.
    "a damaged file of the run's own": [
        "end_to_end/test_errors.py: test_a_damaged_run_is_made_whole_by_what_the_error_says"
    ],
    "counts that do not add up fail the run": [
        "end_to_end/test_between_stages.py: test_lost_counts_stop_the_stage_that_lost_them"
    ],
    "a search that finds nothing exits with 1": ["Finding a pair: nothing is found"],
}


@pytest.mark.everyday
@pytest.mark.parametrize("clause", CLAUSES)
def test_every_clause_on_bad_input_is_held_by_something_that_is_there(clause: str) -> None:
    errors = {f"{case['group']}: {case['when']}" for case in CASES}
    for held in CLAUSES[clause]:
        path, _, name = held.partition(": ")
        is_test = path.endswith(".py") and re.search(
            rf"^def {name}\(", (TESTS / path).read_text(encoding="utf-8"), re.MULTILINE
        )
        assert is_test or held in errors, held


# One record -----------------------------------------------------------------------------------------------------------


def _jpeg(width: int, height: int, colour: int) -> bytes:
    return encoded(Image.new("RGB", (width, height), (colour, 90, 30)), "JPEG")


def _archive() -> bytes:
    good = [
        response(f"https://p.example/{n}", f'<img src="{n}.jpg" alt="a good picture number {n}">'.encode())
        for n in range(4)
    ]
    images = [response(f"https://p.example/{n}.jpg", _jpeg(300, 300, n), "image/jpeg") for n in range(4)]
    broken = bytearray(
        gzip.compress(response("https://p.example/broken", b'<img src="0.jpg" alt="of a broken member">' * 50))
    )
    broken[40:60] = bytes(20)
    huge = b'<img src="1.jpg" alt="' + b"x" * (17 << 20) + b'">'
    bomb = gzip.compress(bytes(40 << 20))
    bad = [
        bytes(broken),
        gzip.compress(response(None, b'<img src="0.jpg" alt="of a record without a URL">')),
        gzip.compress(response("https://p.example/huge", huge)),
        gzip.compress(response("https://p.example/bomb", bomb, headers="Content-Encoding: gzip\r\n")),
    ]
    lying = gzip.compress(
        response(
            "https://p.example/lying",
            "<img src='3.jpg' alt='une photo très lisible'>".encode("latin-1"),
            "text/html; charset=utf-8",
        )
    )
    cut = gzip.compress(response("https://p.example/cut", b'<img src="0.jpg" alt="of a record that is cut">' * 200))
    members = [gzip.compress(record) for record in images] + [
        part for pair in zip(map(gzip.compress, good), bad, strict=True) for part in pair
    ]
    return b"".join(members) + lying + cut[: len(cut) // 2]


def _write_good_and_bad(folder: Path) -> None:
    (folder / "pages.warc.gz").write_bytes(_archive())
    (folder / "rows.csv").write_bytes(
        b"url,caption\nhttps://p.example/0.jpg,a row that is read\none field\nhttps://p.example/1.jpg,caf\xe9 in "
        b"Latin, which is no UTF-8\n"
    )
    (folder / "rows.jsonl").write_bytes(
        b'{"url": "https://p.example/2.jpg", "caption": "a line of JSON"}\n{"url": \n[]\n'
    )
    damaged = [_jpeg(300, 300, 9)[:-400], b"GIF89a", b"<svg/>", _jpeg(4000, 4000, 1), _jpeg(400, 300, 7)]
    pq.write_table(
        pa.table({"image": damaged, "caption": [f"the picture in hand number {n}" for n in range(5)]}),
        folder / "rows.parquet",
    )
    (folder / "config.toml").write_text(
        """
[run]
folder = "run"
[[input]]
paths = ["pages.warc.gz"]
[[input]]
kind = "table"
paths = ["rows.csv", "rows.jsonl"]
[[input]]
kind = "table"
paths = ["rows.parquet"]
url_column = ""
image_column = "image"
[image]
pixels_at_most = 1_000_000
""",
        encoding="utf-8",
    )


@pytest.mark.everyday
def test_one_bad_record_costs_itself_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bad records between good ones, of every kind of file at once: each is counted, and all the good ones are kept."""
    monkeypatch.chdir(tmp_path)
    _write_good_and_bad(tmp_path)
    assert main(["curate", "config.toml"]) == 0
    stages = {stage["stage"]: stage for stage in summary(tmp_path / "run")["stages"]}
    # five of the archive, two of the CSV, two of the JSONL
    assert stages["extract"]["dropped"] == {"record_broken": 9}
    assert stages["image"]["dropped"] == {"image_undecodable": 1, "image_damaged": 2, "image_too_many_pixels": 1}
    kept = {
        row["caption"]
        for path in (tmp_path / "run" / "shards").glob("*.parquet")
        for row in pq.read_table(path).to_pylist()
    }
    assert kept == {
        *(f"a good picture number {n}" for n in range(4)),
        "une photo tr\ufffds lisible",
        "a row that is read",
        "a line of JSON",
        "the picture in hand number 4",
    }


def test_blank_lines_are_no_rows(folder: Path) -> None:
    path = folder / "text" / "some.csv"
    assert main(["curate", "config.toml", "--until", "extract"]) == 0
    before = sum(
        pq.read_metadata(file).num_rows for file in (folder / "run" / "work" / "extract").glob("000002.parquet")
    )
    path.write_text(path.read_text(encoding="utf-8").replace("\n", "\n\n\r\n"), encoding="utf-8")
    assert main(["curate", "config.toml", "--until", "extract", "--rerun"]) == 0
    assert (
        sum(pq.read_metadata(file).num_rows for file in (folder / "run" / "work" / "extract").glob("000002.parquet"))
        == before
    )


# Before any work: exit code 2 -----------------------------------------------------------------------------------------


def test_a_folder_that_is_no_run_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "run").mkdir()
    (folder / "run" / "thesis.txt").write_text("mine", encoding="utf-8")
    assert "a folder that is no run of altalign" in fails(capsys, 2)
    assert [path.name for path in (folder / "run").iterdir() if path.name != "log"] == ["thesis.txt"]


def test_other_settings_are_refused_and_rerun_runs_from_the_first_stage_that_reads_them(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["curate", "config.toml"]) == 0
    before = tree(folder / "run")
    line = fails(capsys, 2, "--set", "shards.samples_per_shard=7")
    assert "stage write was made with shards.samples_per_shard = 20, now 7" in line
    assert "--rerun runs write" in line
    assert tree(folder / "run") == before
    assert "stage judge was made with text.words_at_least = 3, now 2" in fails(
        capsys, 2, "--set", "text.words_at_least=2", "--set", "shards.samples_per_shard=7"
    )
    marks = {path: path.stat().st_mtime_ns for path in (folder / "run" / "work" / "fetch").rglob("*.json")}
    assert main(["curate", "config.toml", "--set", "shards.samples_per_shard=7", "--rerun"]) == 0
    assert {path: path.stat().st_mtime_ns for path in (folder / "run" / "work" / "fetch").rglob("*.json")} == marks
    assert main(["curate", "config.toml", "--rerun"]) == 0
    assert tree(folder / "run") == before


def test_a_stage_that_is_named_runs_anew_with_what_follows_and_nothing_before_it(folder: Path) -> None:
    assert main(["curate", "--rerun", "config.toml"]) == 0  # nothing has changed yet, and config.toml is no stage
    before = tree(folder / "run")
    marks = {path: path.stat().st_mtime_ns for path in (folder / "run" / "work").rglob("*.json")}
    assert main(["curate", "config.toml", "--rerun", "fetch", "--until", "fetch"]) == 0
    anew = {
        path.relative_to(folder / "run" / "work").parts[0]
        for path, time in marks.items()
        if not path.exists() or path.stat().st_mtime_ns != time
    }
    assert anew == {*STAGES[STAGES.index("fetch") :], *OF_FETCHED}
    assert not (folder / "run" / "manifest.json").exists()
    assert main(["curate", "config.toml"]) == 0
    assert tree(folder / "run") == before


def test_a_file_that_changed_is_refused_and_restart_runs_everything(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["curate", "config.toml", "--until", "judge"]) == 0
    path = folder / "input" / "part-0.parquet"
    os.utime(path, ns=(1, 1))
    line = fails(capsys, 2)
    assert "stage extract was made with the file input/part-0.parquet of the same size, but another time" in line
    assert main(["curate", "config.toml", "--restart"]) == 0


def test_a_changed_engine_is_no_other_setting(folder: Path) -> None:
    assert main(["curate", "config.toml", "--until", "judge"]) == 0
    assert main(["curate", "config.toml", "--set", "engine.workers=3"]) == 0


def test_a_dry_run_writes_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["curate", "config.toml", "--dry-run", "--set", "text.words_at_most=33"]) == 0
    said = capsys.readouterr().out
    assert "input/part-1.parquet" in said
    assert "test set tests: 3 files in 1 unit, tests" in said
    every = said.partition("all settings:")[2]
    assert "words_at_most = 33" in every
    assert "words_at_least = 3" in every
    assert not (folder / "run").exists()


# Files that cannot be read: exit code 1 -------------------------------------------------------------------------------


def test_a_file_that_cannot_be_read_stops_the_run_and_made_readable_it_continues(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / "text" / "some.csv.gz"
    whole = gzip.compress((folder / "text" / "some.csv").read_bytes())
    (folder / "text" / "some.csv").unlink()
    path.write_bytes(whole[: len(whole) // 2])
    (folder / "config.toml").write_text(
        (folder / "config.toml").read_text(encoding="utf-8").replace("*.csv", "*.csv.gz"), encoding="utf-8"
    )
    line = fails(capsys, 1)
    assert "text/some.csv.gz" in line
    path.write_bytes(whole)
    assert main(["curate", "config.toml"]) == 0


def test_a_file_that_cannot_be_read_is_counted_where_that_is_asked_for(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "input" / "part-1.parquet").write_bytes(b"PAR1 and nothing more")
    text = (folder / "config.toml").read_text(encoding="utf-8")
    (folder / "config.toml").write_text(
        text.replace('image_column = "image"', 'image_column = "image"\nskip_unreadable = true'), encoding="utf-8"
    )
    assert main(["curate", "config.toml"]) == 0
    broken = [
        row
        for path in (folder / "run" / "dropped" / "extract").glob("broken-*.parquet")
        for row in pq.read_table(path).to_pylist()
    ]
    assert [row["file"] for row in broken] == ["input/part-1.parquet"]
    assert "record_broken" in capsys.readouterr().out


def test_a_parquet_page_that_is_damaged_names_its_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / "input" / "part-0.parquet"
    pq.write_table(
        pa.table(
            {
                "url": ["https://a.example/"] * 1000,
                "caption": [f"caption number {i}" for i in range(1000)],
                "page": [None] * 1000,
            }
        ),
        path,
        compression="none",
        use_dictionary=False,
    )
    data = bytearray(path.read_bytes())
    data[4:3000] = b"\xff" * 2996
    path.write_bytes(data)
    (folder / "config.toml").write_text(
        (folder / "config.toml")
        .read_text(encoding="utf-8")
        .replace('image_column = "image"\n', "")
        .replace("input/*.parquet", "input/part-0.parquet"),
        encoding="utf-8",
    )
    assert "input/part-0.parquet" in fails(capsys, 1, "--until", "judge")


# Nothing, and hardly anything -----------------------------------------------------------------------------------------


def test_files_without_rows_or_bytes_are_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "text" / "header.csv").write_text("url,caption\n", encoding="utf-8")
    (folder / "text" / "none.csv").write_bytes(b"")
    assert main(["curate", "config.toml"]) == 0
    said = "text/header.csv and 1 more: no row, record or page in it (0 bytes, or a header alone)"
    assert said in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("content", ["no rows", "no bytes"])
def test_an_input_of_which_all_files_are_empty_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], content: str
) -> None:
    for path in (folder / "input").iterdir():
        if content == "no rows":
            pq.write_table(pq.read_table(path).slice(0, 0), path)
        else:
            path.write_bytes(b"")
    said = fails(capsys, 2)
    assert "no row, record or page in it (0 bytes, or a header alone); nothing comes of input" in said
    assert not list((folder / "run").glob("shards/*"))


@pytest.mark.parametrize(("content", "code"), [(b"", 2), (b"PAR1 and no more", 1)], ids=["empty", "broken"])
def test_a_try_that_read_nothing_does_not_bind_the_folder(folder: Path, content: bytes, code: int) -> None:
    (folder / "wrong.parquet").write_bytes(content)
    of_the_first = ("--set", 'input=[{kind="table",paths=["wrong.parquet"]}]', "--until", "judge")
    assert main(["curate", "config.toml", *of_the_first]) == code
    assert main(["curate", "config.toml", "--until", "judge"]) == 0
    assert main(["curate", "config.toml", *of_the_first]) == 2  # what has read something does
    assert main(["curate", "config.toml"]) == 0


def test_a_run_of_which_nothing_is_left_names_the_reason_and_fails(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Most rows may go elsewhere: what counts is the share of what a stage received."""
    assert main(["curate", "config.toml", "--set", "image.short_side_above_px=5000"]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "nothing is left of the pool; image dropped" in said
    assert "as image_too_small (image.short_side_above_px = 5_000)" in said
    assert "Nothing was kept" in (folder / "run" / "report.html").read_text(encoding="utf-8")
    assert (folder / "run" / "manifest.json").is_file()


@pytest.mark.everyday
def test_a_full_disk_says_so_and_the_run_continues(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file-size limit of the process stands for the disk: writes fail as they do on a full one."""
    pytest.importorskip("resource")
    import errno

    from altalign import storage

    real, left = storage.write, [12]

    def write(path: str, **more: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device", path)
        return real(path, **more)

    monkeypatch.setattr(storage, "write", write)
    assert "no space left on the device" in fails(capsys, 1)
    monkeypatch.setattr(storage, "write", real)
    assert main(["curate", "config.toml"]) == 0
