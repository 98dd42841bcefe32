"""Runs whose inputs lie on a web server and on the Hugging Face Hub: a real server on loopback, which plays both."""

import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from altalign.cli import main
from tests.object_stores.web import BUCKET, HUB, Web, serving
from tests.support.curations import fails, tree, write_input

pytestmark = pytest.mark.runs


@pytest.fixture
def web(folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    """A small input in the working directory, and the same served."""
    write_input(folder, rows=200)
    monkeypatch.setenv("ALTALIGN_CACHE", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setenv("HF_TOKEN", "")
    with serving(folder) as served:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{served.port}")
        yield served


def on_the_web(web: Web) -> None:
    """The same config with tables of images in a bucket of the Hub, one of text on a web server, tests on the Hub."""
    config = Path("config.toml")
    text = config.read_text(encoding="utf-8").replace("input/*.parquet", f"{BUCKET}/input/*.parquet")
    text = text.replace("text/*.csv", web.url("text/some.csv?download=true")).replace('["tests"]', f'["{HUB}/tests"]')
    config.write_text(text, encoding="utf-8")


@pytest.mark.everyday
def test_a_run_is_the_same_wherever_its_inputs_are(web: Web, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["curate", "config.toml"]) == 0
    local = tree(Path("run"))
    on_the_web(web)
    assert main(["curate", "config.toml", "--set", "run.folder=remote"]) == 0
    remote = tree(Path("remote"))
    assert {name: digest for name, digest in local.items() if name.startswith(("shards/", "dropped/"))} == {
        name: digest for name, digest in remote.items() if name.startswith(("shards/", "dropped/"))
    }
    assert any(wanted for _, name, wanted in web.asked if name.endswith("part-0.parquet"))
    # and again: nothing has changed
    assert main(["curate", "config.toml", "--set", "run.folder=remote"]) == 0
    (web.folder / "text" / "some.csv").write_text("url,caption\nhttps://img.example/1.png,a lake at night\n")
    said = fails(capsys, 2, "--set", "run.folder=remote")
    where = web.url("text/some.csv?download=true")
    assert said.startswith(f"remote: its stage extract was made with the file {where} of ")


def test_a_first_config_is_guessed_of_what_is_on_the_web(web: Web) -> None:
    assert main(["init", f"{HUB}/input", web.url("text/some.csv")]) == 0
    paths = [each["paths"] for each in tomllib.loads(Path("altalign.toml").read_text(encoding="utf-8"))["input"]]
    assert paths == [[f"{HUB}/input/*.parquet"], [web.url("text/some.csv")]]
    assert main(["curate", "altalign.toml", "--dry-run"]) == 0
