"""What a user reads when a command fails, whole: tests/cases/errors.toml, on real files, one case each."""

import errno
import gzip
import json
import os
import re
import shlex
import shutil
import sys
import threading
import tomllib
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from altalign import storage
from altalign.cli import main
from altalign.pipelines.stages import fetch
from altalign.storage import clients
from tests.object_stores.servers import Server
from tests.support.curations import tree, write_input

pytestmark = pytest.mark.faults

CASES = tomllib.loads((Path(__file__).parents[1] / "cases" / "errors.toml").read_text(encoding="utf-8"))["error"]
CUT = '{"stages": '  # JSON after a power failure
NOISE = bytes(range(256)) * 8
ONE = """
[run]
folder = "run"

[input]
kind = "table"
paths = ["input/*.parquet"]
image_column = "image"
page_url_column = "page"
"""
TRAIN = """
[run]
folder = "trained"

[data]
runs = ["run"]
resize_px = 36
crop_px = 32
workers = 0

[tokenizer]
vocabulary_size = 60
tokens_at_most = 8

[image_tower]
architecture = "vit_ti16"
width = 0.34
depth = 0.1
positions_px = 32

[text_tower]
layers = 1
width = 16
heads = 2

[loss]
label_smoothing = 0.0

[schedule]
steps = 1
warmup_steps = 0

[loop]
global_batch = 4
device = "cpu"
precision = "float32"
"""


# What is done first to the folder -------------------------------------------------------------------------------------


def _write(path: str, content: str | bytes) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_bytes(content if isinstance(content, bytes) else content.encode())


def _cut(path: str) -> None:
    """The first half of a file."""
    Path(path).write_bytes(Path(path).read_bytes()[: Path(path).stat().st_size // 2])


def _first(pattern: str) -> str:
    """The first file of a pattern that holds anything."""
    return next(str(path) for path in sorted(Path().glob(pattern)) if path.stat().st_size)


def _drop(pattern: str) -> None:
    Path(_first(pattern)).unlink()


def _lose_counts() -> None:
    """A mark whose counts are gone, before the stage has ended."""
    mark = next(
        path
        for path in sorted(Path("run/work/judge/grouped/marks").glob("0*.json"))
        if json.loads(path.read_text(encoding="utf-8"))["counts"]
    )
    mark.write_text(json.dumps({**json.loads(mark.read_text(encoding="utf-8")), "counts": []}), encoding="utf-8")
    Path("run/work/judge/done.json").unlink()


def _from_the_web() -> None:
    """Of a run, as if its images were, or would have been, fetched from the web."""
    config = Path("run/config.toml")
    config.write_text(
        config.read_text(encoding="utf-8").replace('source = "archive"', 'source = "web"'), encoding="utf-8"
    )


def _remove() -> None:
    """A pair of the first shard."""
    rows = pq.read_table("run/shards/00000.parquet").to_pylist()
    _write("list.txt", rows[0]["key"])
    assert main(["remove", "run", "--keys", "list.txt"]) == 0


def _train() -> None:
    """A training of the finished run."""
    assert main(["train", "train.toml"]) == 0


def _grow(path: str) -> None:
    with Path(path).open("ab") as file:
        file.write(b"https://img.example/1.png,one more line\n")


# By the word before "and" or "with": what of a run is there already, then what is done to it.
RUNS = {
    "a finished run": "write",
    "a run until judge": "judge",
    "a run until tables": "tables",
    "a run until extract": "extract",
}
GIVEN: dict[str, Callable[[], object]] = {
    "a config with two mistakes": lambda: _write(
        "config.toml", '[input]\npaths = "input"\n[text]\nwords_at_lest = 3\n'
    ),
    "a config that is no TOML": lambda: _write("config.toml", "[input]\npaths = input/*.parquet\n"),
    "a config in Latin-1": lambda: _write("config.toml", "# Ren\xe9\n".encode("latin-1")),
    "a block list of words": lambda: _write("blocked.txt", "cats\n"),
    "a list of addresses of pages": lambda: _write("domains.txt", "example.org\nhttps://example.org/page\n"),
    "an empty folder": lambda: Path("empty").mkdir(),
    "a zip archive among test images": lambda: _write("tests/val2017.zip", NOISE),
    "a test image that is cut": lambda: _cut("tests/copy.jpg"),
    "a table of unknown columns": lambda: _write("text/some.csv", "where,what\nhttp://a/,a lake at night\n"),
    "a table of semicolons": lambda: _write("text/some.csv", "url;caption\nhttp://a/;a lake at night\n"),
    "a pipe": lambda: os.mkfifo("pipe.csv"),
    "a file of a strange name": lambda: _write("input/\x1b[2Jx.csv", "url,caption\n"),
    "a Parquet file of text": lambda: _write("input/part-0.parquet", "PAR1 and nothing more"),
    "a gzip file cut in two": lambda: (
        _write("text/some.csv.gz", gzip.compress(Path("text/some.csv").read_bytes())),
        _cut("text/some.csv.gz"),
    ),
    "a tar of text": lambda: _write("text/some.tar", b"no tar\n" * 200),
    "a folder of images": lambda: _write("photos/0001.png", NOISE),
    "a header alone": lambda: _write("text/some.csv", "url,caption\n"),
    "an archive of noise": lambda: _write("text/some.warc.gz", NOISE),
    "a thesis in the run folder": lambda: _write("run/thesis.txt", "mine"),
    "a file as the run folder": lambda: _write("run", "mine"),
    "and a touched file": lambda: os.utime("input/part-0.parquet", ns=(1, 1)),
    "and a longer file": lambda: _grow("text/some.csv"),
    "and one file more": lambda: shutil.copy("text/some.csv", "text/more.csv"),
    "and a list of cats": lambda: _write("list.txt", "cat\n"),
    "and pairs removed": _remove,
    "and a training": _train,
    "and a list without nouns": lambda: _write("nouns.txt", "\n  \n"),
    "and images without captions": lambda: pq.write_table(
        pa.table({"image": [NOISE], "caption": [""]}), "pictures.parquet"
    ),
    "from the web": _from_the_web,
    "from the web without work": lambda: (_from_the_web(), shutil.rmtree("run/work")),
    "with run.json cut": lambda: _write("run/run.json", CUT),
    "with run.json of something else": lambda: _write("run/run.json", '{"stages": [1, 2]}'),
    "without config.toml": lambda: _drop("run/config.toml"),
    "without a shard": lambda: _drop("run/shards/*.tar"),
    "with a shard cut": lambda: _cut("run/shards/00000.tar"),
    "with manifest.json cut": lambda: _write("run/manifest.json", CUT),
    "with manifest.json of something else": lambda: _write("run/manifest.json", '{"shards": 3}'),
    "with counts.parquet of noise": lambda: _write("run/counts.parquet", NOISE),
    "with dropped rows of noise": lambda: _write(_first("run/dropped/judge/*.parquet"), NOISE),
    "with a vocabulary of noise": lambda: _write("run/tables/vocabulary.npy", NOISE),
    "with a mark cut": lambda: _write(_first("run/work/judge/grouped/marks/*.json"), CUT),
    "with a mark of something else": lambda: _write(
        _first("run/work/judge/grouped/marks/*.json"), '{"unit": "00000", "row_groups": 7}'
    ),
    "with lost counts": _lose_counts,
    "with a spill cut": lambda: (
        _cut(_first("run/work/judge/units/*.survivors")),
        _drop("run/work/judge/done.json"),
        _drop("run/work/judge/grouped/marks/*.json"),
    ),
    "without a spill": lambda: (
        _drop("run/work/judge/units/*.survivors"),
        _drop("run/work/judge/done.json"),
        _drop("run/work/judge/grouped/marks/*.json"),
    ),
    "with grouped survivors of noise": lambda: _write(_first("run/work/judge/grouped/*.parquet"), NOISE),
    "with candidates of noise": lambda: _write(_first("run/work/extract/000002.parquet"), NOISE),
}


@contextmanager
def _at_work() -> Iterator[None]:
    with storage.locked("run"):
        yield


@contextmanager
def _full_disk() -> Iterator[None]:
    """Files of the tables find no place."""
    real = Path.replace

    def replace(self: Path, target: Path) -> Path:
        if "tables" in target.parts:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self))
        return real(self, target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "replace", replace)
        yield


@contextmanager
def _changing() -> Iterator[None]:
    """The table loses a row before the images of any are gathered, which several threads do."""
    real, alone, shorter = fetch.gather, threading.Lock(), pq.read_table("input/part-0.parquet").slice(1)

    def gather(*arguments: Any) -> Any:
        nonlocal shorter
        with alone:
            if shorter:
                pq.write_table(shorter, "input/part-0.parquet")
            shorter = None
        return real(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fetch, "gather", gather)
        yield


@contextmanager
def _without_hub() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "huggingface_hub", None)
        yield


MEANWHILE = {
    "without huggingface_hub": _without_hub,
    "another command at work": _at_work,
    "a full disk": _full_disk,
    "a table that changes after extract": _changing,
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a small run until a stage (none: not begun), made once; to be copied."""
    folders: dict[str, Path] = {}

    def until(stage: str) -> Path:
        if stage not in folders:
            folders[stage] = tmp_path_factory.mktemp(stage or "fresh")
            write_input(folders[stage], rows=120)
            config = folders[stage] / "config.toml"
            config.write_text(
                config.read_text(encoding="utf-8").replace("vocabulary_size = 380", "vocabulary_size = 150"),
                encoding="utf-8",
            )
            (folders[stage] / "one.toml").write_text(ONE, encoding="utf-8")
            (folders[stage] / "train.toml").write_text(TRAIN, encoding="utf-8")
            with chdir(folders[stage]):
                assert not stage or main(["curate", "config.toml", "--until", stage]) == 0
        return folders[stage]

    return until


@contextmanager
def prepared(made: Callable[[str], Path], folder: Path, given: str) -> Iterator[None]:
    """A case's folder, and the working directory in it."""
    begun = next((name for name in RUNS if given.startswith(name)), "")
    then = given.removeprefix(begun).strip()
    shutil.copytree(made(RUNS.get(begun, "")), folder)  # the times of files, which a run compares, stay
    with chdir(folder):
        if then in GIVEN:
            GIVEN[then]()
        with MEANWHILE.get(then, nullcontext)():
            assert then in {"", *GIVEN, *MEANWHILE}
            yield


def lines_of(said: str, folder: Path) -> list[str]:
    """What a command said of its failure, without what differs from machine to machine."""
    same = said.replace(str(folder.resolve()), "FOLDER").replace(f"process {os.getpid()}", "process PID")
    same = re.sub(r"\b\d{1,3}(?:,\d{3})+\b", "N", same)
    return [line.removeprefix("altalign: ") for line in same.splitlines() if line.startswith("altalign: ")]


@contextmanager
def _fresh_clients() -> Iterator[None]:
    """Clients of stores that ask with this environment, and no later one."""
    clients._client.cache_clear()
    yield
    clients._client.cache_clear()


def _files() -> set[str]:
    return {str(path) for path in Path().rglob("*") if path.is_file() and path.name != "lock"}


@pytest.mark.everyday
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['group']}: {case['when']}")
def test_an_error_says_what_is_wrong_where_the_value_and_what_to_do(
    case: dict[str, Any],
    made: Callable[[str], Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store: Server | None = request.getfixturevalue("s3") if case["group"] == "Object stores" else None
    bucket = store.bucket if store else ""
    for name, value in case.get("environment", {}).items():
        monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name)
    with prepared(made, tmp_path / "folder", case.get("given", "")), _fresh_clients():
        before = _files()
        capsys.readouterr()
        code = main(shlex.split(case["command"].replace("BUCKET", bucket) if store else case["command"]))
        said = capsys.readouterr().err
        if store:
            said = said.replace(bucket, "BUCKET").replace(os.environ["AWS_ENDPOINT_URL"], "ENDPOINT")
        assert (code, lines_of(said, tmp_path / "folder")) == (case["code"], case["lines"])
        assert "Traceback" not in said
        assert code != 2 or _files() == before  # refused before any work


def _to_be_rerun() -> dict[str, dict[str, Any]]:
    """Of the damages that curate meets, the last of each stage that it names."""
    said = [case for case in CASES if case["group"] == "Files of a run" and case["command"].startswith("curate")]
    return {
        case["lines"][0].partition("--rerun ")[2].split()[0]: case for case in said if " --rerun " in case["lines"][0]
    }


@pytest.mark.parametrize(("stage", "case"), _to_be_rerun().items(), ids=_to_be_rerun())
def test_a_damaged_run_is_made_whole_by_what_the_error_says(
    stage: str, case: dict[str, Any], made: Callable[[str], Path], tmp_path: Path
) -> None:
    with prepared(made, tmp_path / "folder", case["given"]):
        assert main(shlex.split(case["command"])) == 1
        assert main(["curate", "config.toml", "--rerun", stage]) == 0
        assert tree(Path("run")) == tree(made("write") / "run")


@pytest.mark.parametrize(
    ("given", "of"),
    [
        ("a run until judge with a mark cut", "run/work/judge/grouped/marks/"),
        ("a run until judge with a mark of something else", "run/work/judge/grouped/marks/"),
        ("a run until judge with lost counts", "run/work/"),
        ("a run until judge with a spill cut", "run/work/judge/units/000000-00000.survivors"),
        ("a run until judge without a spill", "run/work/judge/units/000000-00000.survivors"),
        ("a run until judge with grouped survivors of noise", "run/work/judge/grouped/00000.parquet"),
        ("a run until extract with candidates of noise", "run/work/extract/000002.parquet"),
        ("a run until tables with a vocabulary of noise", "run/tables/vocabulary.npy"),
    ],
)
def test_damage_of_a_run_that_goes_on_is_named_and_made_anew(
    given: str, of: str, made: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with prepared(made, tmp_path / "folder", given):
        assert main(["curate", "config.toml"]) == 0
        assert re.search(rf"^{re.escape(of)}.*; it is made anew$", capsys.readouterr().err, re.MULTILINE)
        assert tree(Path("run")) == tree(made("write") / "run")


def test_without_its_record_a_run_is_made_whole_by_a_restart(made: Callable[[str], Path], tmp_path: Path) -> None:
    with prepared(made, tmp_path / "folder", "a finished run with run.json cut"):
        assert main(["curate", "config.toml", "--restart"]) == 0
        assert tree(Path("run")) == tree(made("write") / "run")


@pytest.mark.parametrize(
    "command",
    [
        "curate mine.toml",
        "curate config.toml --set run.folder=run/config.toml",
        "status input",
        "explain input --text x",
        "clean input",
        "demo .",
    ],
)
def test_every_verb_shows_a_traceback_with_debug_and_none_without(
    command: str, made: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with prepared(made, tmp_path / "folder", "a file as the run folder"):
        assert main(shlex.split(command)) == 2
        plain = capsys.readouterr().err
        assert main([*shlex.split(command), "--debug"]) == 2
        debugged = capsys.readouterr().err
    assert "Traceback" not in plain
    assert debugged.startswith("Traceback (most recent call last):")
    assert debugged.endswith(plain)
