"""`altalign curate --rerun` of a run whose images came from the web: what was fetched is taken over, nothing twice."""

import subprocess
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from altalign.cli import main
from tests.end_to_end.web_inputs import Asked, answers, asked_for, pictures, tries, write_web_input
from tests.support.curations import tree
from tests.web_server.running import WebServer

pytestmark = pytest.mark.runs


@pytest.fixture
def folder(server: WebServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_web_input(tmp_path, server, [*pictures(server, 40), *answers(server)])
    return tmp_path


def sets(*settings: str) -> list[str]:
    return [word for setting in settings for word in ("--set", setting)]


CHANGES = {
    "a rule on texts": ["text.words_at_least=6"],
    "a table of texts": ["text.images_per_text_at_most=1"],
    "columns that are kept": ['input.keep_columns=["number"]'],
    "what is kept for the audit": ["audit.keep_dropped=false"],
    "the size of shards": ["shards.samples_per_shard=7"],
    "near-duplicates in the pool": ['dedup.within_pool="keep_one_image"'],
    "a test set": ['decontaminate.test_sets=["tests"]'],
    "a block list of URLs": ['fetch.blocked_urls=["blocked"]', "text.words_at_least=6"],
}


# of these, images are judged again as they were found
JUDGED_ANEW = {
    "a rule on images": ["image.short_side_above_px=100"],
    "the form of shards": ["shards.resize_short_side_px=210"],
    "images as found": ["shards.portable=false"],
    "a rule on images and one on texts": ["text.words_at_least=6", "image.short_side_above_px=100"],
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_was_fetched_is_taken_over(
    change: str, server: WebServer, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / "input" / "pairs.parquet"
    rows = pq.read_table(path)
    pq.write_table(rows.append_column("number", pa.array(map(str, range(len(rows))))), path)
    (folder / "blocked").write_text("0" * 64 + "\n")
    assert main(["curate", "config.toml"]) == 0
    (folder / "tests").mkdir()
    shard = next((folder / "run" / "shards").glob("*.tar"))
    subprocess.run(["tar", "-xf", shard, "-C", folder / "tests", "--wildcards", "*.jpg"], check=True)
    for each in sorted((folder / "tests").iterdir())[3:]:
        each.unlink()
    history, since = len(tries(folder / "run")), len(server.requests())
    capsys.readouterr()
    assert main(["curate", "config.toml", "--rerun", *sets(*CHANGES[change])]) == 0
    assert not asked_for(server, since=since)
    assert len(tries(folder / "run")) == history
    assert not (folder / "run/work/fetched").exists()
    assert main(["curate", "config.toml", "--set", "run.folder=fresh", *sets(*CHANGES[change])]) == 0
    assert tree(folder / "run") == tree(folder / "fresh")
    assert main(["audit", "run"]) == 0
    if change == "a rule on texts":
        since = len(server.requests())
        assert main(["curate", "config.toml", "--restart"]) == 0
        assert len(asked_for(server, since=since)) > 40


@pytest.mark.parametrize("change", JUDGED_ANEW)
@pytest.mark.parametrize("keeps_found", [False, True])
def test_images_are_judged_anew_as_they_were_found_or_asked_for_again(
    change: str, server: WebServer, folder: Path, *, keeps_found: bool
) -> None:
    """With `fetch.keep_found` nothing is asked for; without it what was dropped, or encoded anew."""
    found = sets(f"fetch.keep_found={str(keeps_found).lower()}")
    assert main(["curate", "config.toml", *found]) == 0
    since, settings = len(server.requests()), sets(*JUDGED_ANEW[change])
    assert main(["curate", "config.toml", "--rerun", *found, *settings]) == 0
    assert bool(asked_for(server, since=since)) != keeps_found
    assert main(["curate", "config.toml", "--set", "run.folder=fresh", *found, *settings]) == 0
    assert tree(folder / "run") == tree(folder / "fresh")


@pytest.mark.parametrize("keeps_found", [False, True])
def test_for_another_purpose_only_what_was_refused_is_asked_for(
    server: WebServer, folder: Path, *, keeps_found: bool
) -> None:
    """Of marks inside images, for those of headers have a time, by which runs would differ."""
    found = sets(f"fetch.keep_found={str(keeps_found).lower()}")
    generative = [f"{server.url('/png/g')}?mining=DMI-PROHIBITED-GENAIMLTRAINING&n={number}" for number in range(3)]
    write_web_input(folder, server, [*pictures(server, 10), *answers(server), *map(Asked, generative)])
    assert main(["curate", "config.toml", *found]) == 0
    for purpose, wanted in (("train-other", generative), ("train", []), ("train-generative", [])):
        since, settings = len(server.requests()), [*found, *sets(f'fetch.purpose="{purpose}"')]
        assert main(["curate", "config.toml", "--rerun", *settings]) == 0
        assert sorted(asked_for(server, since=since)) == sorted(wanted)
        assert main(["curate", "config.toml", "--set", f"run.folder={purpose}", *settings]) == 0
        assert samples(folder / "run") == samples(folder / purpose)
        assert kinds_of_drops(folder / "run") == kinds_of_drops(folder / purpose)


def samples(run: Path) -> dict[str, str]:
    return {path: digest for path, digest in tree(run).items() if path.startswith(("shards/", "dropped/image/"))}


def kinds_of_drops(run: Path) -> list[dict]:
    """Rows that `fetch` dropped, but for the status: of an image that is refused now, it came before."""
    rows = pq.read_table(run / "dropped" / "fetch").drop_columns("http_code").to_pylist()
    return sorted(rows, key=lambda row: row["key"])
