"""Rules of a run's own: functions beside the settings, asked, counted and explained like the built-in ones."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from altalign.cli import main
from tests.support.curations import ROOT, altalign, rows_in, summary, tree
from tests.support.pictures import encoded

pytestmark = pytest.mark.runs

CONFIG = """
[run]
folder = "run"

[[input]]
kind = "table"
paths = ["pairs.parquet"]
image_column = "image"

[text]
filters = ["my_rules:no_prices"]
own.no_prices.words_at_most = 10

[image]
filters = ["my_rules:no_banners"]
own.no_banners.sizes = ["728x300"]
"""
CAPTIONS = ["a red bicycle there", "only $ 99 for it", "a kettle for 12 EUR", *["one of many pictures"] * 3]


def picture(number: int, width: int = 320) -> bytes:
    coarse = np.random.default_rng(number).integers(0, 255, (8, 8, 3), np.uint8)
    return encoded(Image.fromarray(coarse).resize((width, 300)))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Six pairs: two with prices, one of an image of the size of a banner, one of no image."""
    monkeypatch.chdir(tmp_path)
    images = [*map(picture, range(4)), picture(4, width=728), b"no image"]
    urls = [f"http://a.example/{number}.png" for number in range(6)]
    pq.write_table(pa.table({"url": urls, "caption": CAPTIONS, "image": images}), tmp_path / "pairs.parquet")
    (tmp_path / "config.toml").write_text(CONFIG, encoding="utf-8")
    shutil.copy(ROOT / "examples/own-rules/my_rules.py", tmp_path)
    return tmp_path


def dropped(run: Path) -> dict[str, tuple[str, ...]]:
    """Every reason that holds, of each dropped pair, by the number of its URL."""
    return {row["image_url"][17:-4]: tuple(row["failed"]) for row in rows_in(run / "dropped")}


@pytest.mark.everyday
def test_an_own_rule_drops_is_counted_and_explained_as_a_built_in_one(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["curate", "config.toml"]) == 0
    assert dropped(folder / "run") == {
        "1": ("own:no_prices",),
        "2": ("own:no_prices",),
        "4": ("own:no_banners",),
        "5": ("image_undecodable",),
    }
    stages = {stage["stage"]: stage["dropped"] for stage in summary(folder / "run")["stages"]}
    assert stages["judge"] == {"own:no_prices": 2}
    assert stages["image"] == {"image_undecodable": 1, "own:no_banners": 1}
    capsys.readouterr()
    assert main(["explain", "run", "--text", CAPTIONS[1]]) == 0
    said = '- own:no_prices: [text] filters = ["my_rules:no_prices"], words_at_most = 10'
    assert said in capsys.readouterr().out
    assert main(["audit", "run"]) == 0
    page, card = ((folder / "run" / name).read_text(encoding="utf-8") for name in ("report.html", "README.md"))
    for name in ("no_prices", "no_banners"):
        assert f"own:{name}" in page
        assert f"`own:{name}` | " in card
    samples = pq.read_table(folder / "run" / "audit" / "samples.parquet").to_pylist()
    assert {row["reason"]: bool(row["picture"]) for row in samples} == {
        "own:no_prices": False,
        "own:no_banners": True,
        "image_undecodable": False,
        "kept": True,
    }


def test_a_run_rests_on_the_source_of_its_rules(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["curate", "config.toml"]) == 0
    assert (folder / "run" / "my_rules.py").read_bytes() == (folder / "my_rules.py").read_bytes()
    source = (folder / "my_rules.py").read_text(encoding="utf-8")
    (folder / "my_rules.py").write_text(source.replace("[$€£]", "[€£]"), encoding="utf-8")
    capsys.readouterr()
    assert main(["curate", "config.toml"]) == 2
    assert "its stage judge was made with module my_rules = '" in capsys.readouterr().err
    assert main(["curate", "config.toml", "--rerun"]) == 0
    assert dropped(folder / "run").keys() == {"2", "4", "5"}
    (folder / "my_rules.py").unlink()
    assert main(["curate", "config.toml"]) == 2
    assert "no module 'my_rules': there is no my_rules.py" in capsys.readouterr().err
    # commands on the run have the copy of the run
    (folder / "tests").mkdir()
    (folder / "tests" / "0.png").write_bytes(picture(0))
    assert main(["add", "run", "--test-set", "ours=tests"]) == 0
    assert dropped(folder / "run")["0"] == ("near_duplicate_of_test_image",)


def test_a_module_on_the_python_path_is_found(folder: Path) -> None:
    package = folder / "elsewhere" / "rules_of_ours"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (folder / "my_rules.py").rename(package / "my_rules.py")
    config = (folder / "config.toml").read_text().replace('"my_rules:', '"rules_of_ours.my_rules:')
    (folder / "config.toml").write_text(config)
    done = altalign(
        folder, "curate", "config.toml", "--until", "judge", environment={"PYTHONPATH": str(package.parent)}
    )
    assert done.returncode == 0, done.stderr
    assert dropped(folder / "run").keys() == {"1", "2"}
    assert (folder / "run" / "rules_of_ours" / "my_rules.py").exists()


@pytest.mark.parametrize("runner", ["prism"])
def test_workers_of_an_engine_have_the_rules_and_give_the_same_bytes(folder: Path, runner: str) -> None:
    if not os.environ.get("ALTALIGN_PRISM"):
        pytest.skip("no Prism: build it with `make prism`")
    assert main(["curate", "config.toml"]) == 0
    (folder / "run").rename(folder / "embedded")
    assert main(["curate", "config.toml", "--set", f'engine.runner="{runner}"']) == 0
    assert tree(folder / "run") == tree(folder / "embedded")


# Errors ---------------------------------------------------------------------------------------------------------------

AT_ONCE = {
    "a syntax error": ("def no_prices(caption:\n    return None", "my_rules.py line 1: "),
    "an import that fails": ("import os\nimport no_such_module_there", "my_rules.py line 2: ModuleNotFoundError: "),
    "no function": ("no_prices = 3", "[text] filters: my_rules.py has no function 'no_prices'"),
    "an unknown column": (
        "\ndef no_prices(captions, words_at_most): ...",
        "my_rules.py line 2: no_prices: nothing is known of its parameter 'captions'; the columns are caption, url, ",
    ),
    "any arguments": (
        "def no_prices(**values): ...",
        "my_rules.py line 1: no_prices: nothing is known of its parameter '**values'; ",
    ),
    "an unknown setting": (
        "def no_prices(caption): ...",
        "my_rules.py line 1: no_prices has no such setting as 'words_at_most'; ",
    ),
    "something else than booleans": (
        "def no_prices(caption, words_at_most): return caption",
        "my_rules.py line 1: no_prices: it returned 0 of string; give a pyarrow array of 0 booleans, true where a row "
        "is dropped (it was tried with no rows)",
    ),
    "no array": (
        "def no_prices(caption, words_at_most): return [True]",
        "my_rules.py line 1: no_prices: it returned list; give ",
    ),
}


@pytest.mark.parametrize(("source", "said"), AT_ONCE.values(), ids=AT_ONCE.keys())
def test_a_rule_that_cannot_be_asked_stops_the_command_before_any_work(
    folder: Path, capsys: pytest.CaptureFixture[str], source: str, said: str
) -> None:
    (folder / "config.toml").write_text(CONFIG.partition("[image]")[0])
    (folder / "my_rules.py").write_text(source)
    assert main(["curate", "config.toml"]) == 2
    assert capsys.readouterr().err.startswith(f"altalign: {said}")
    assert not (folder / "run").exists()


HEAD = "import pyarrow as pa\nimport pyarrow.compute as pc\n\ndef no_prices(caption, words_at_most):\n"
LATER = {
    "an exception": (
        "    return pa.array([1 / ('$' not in each.as_py()) > 9 for each in caption], pa.bool_())",
        "my_rules.py line 5: no_prices: ZeroDivisionError: division by zero on row 1 of pairs.parquet, caption "
        "'only $ 99 for it'; put that right, and run the command with --rerun",
    ),
    "a null": (
        "    return pc.if_else(pc.match_substring(caption, '$'), pa.scalar(None, pa.bool_()), False)",
        "my_rules.py line 4: no_prices: it returned null for row 1 of pairs.parquet, caption 'only $ 99 for it'; "
        "decide it, such as with pyarrow.compute.fill_null",
    ),
    "too few": (
        "    return pa.array([True] * (len(caption) // 2), pa.bool_())",
        "my_rules.py line 4: no_prices: it returned 3 of bool; give a pyarrow array of 6 booleans, ",
    ),
}


@pytest.mark.parametrize(("body", "said"), LATER.values(), ids=LATER.keys())
def test_a_rule_that_fails_names_file_line_and_row(
    folder: Path, capsys: pytest.CaptureFixture[str], body: str, said: str
) -> None:
    (folder / "config.toml").write_text(CONFIG.partition("[image]")[0])
    (folder / "my_rules.py").write_text(HEAD + body)
    assert main(["curate", "config.toml", "--until", "judge"]) == 1
    assert f"altalign: {said}" in capsys.readouterr().err
    shutil.copy(ROOT / "examples/own-rules/my_rules.py", folder)
    assert main(["curate", "config.toml", "--until", "judge", "--rerun"]) == 0


def test_an_image_rule_that_fails_names_the_image(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "config.toml").write_text(CONFIG.replace("no_prices.words_at_most = 10", "no_prices = {}"))
    with (folder / "my_rules.py").open("a") as file:
        file.write("\n\ndef no_banners(width, *, sizes):\n    return pa.array([each.as_py() // 0 for each in width])\n")
    config = (folder / "config.toml").read_text()
    (folder / "config.toml").write_text(config)
    assert main(["curate", "config.toml"]) == 2  # of no rows there is an array of nulls
    assert "it returned 0 of null" in capsys.readouterr().err
    source = (folder / "my_rules.py").read_text().replace("in width])", "in width], pa.bool_())")
    (folder / "my_rules.py").write_text(source)
    assert main(["curate", "config.toml"]) == 1
    said = capsys.readouterr().err
    assert "no_banners: ZeroDivisionError: integer division or modulo by zero on the image 'http://a.example/" in said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('filters = ["my_rules"]', 'config.toml [text] filters entry 1 = "my_rules": not of the form '),
        ('filters = ["a:f", "b:f"]', 'config.toml [text]: filters: two functions are named "f", and so would be '),
        ("own.f.x = 1", 'config.toml [text]: own.f: filters have no function "f"'),
        ("own = 3", "config.toml [text] own = 3: "),
        ('filters = "my_rules:f"', 'config.toml [text] filters = "my_rules:f": give a list'),
    ],
)
def test_wrong_names_are_one_line(folder: Path, capsys: pytest.CaptureFixture[str], text: str, said: str) -> None:
    (folder / "config.toml").write_text(f'[input]\nkind = "table"\npaths = ["pairs.parquet"]\n[text]\n{text}\n')
    assert main(["curate", "config.toml"]) == 2
    found = capsys.readouterr().err
    assert said in found
    assert len(found.splitlines()) == 1


def test_settings_of_own_rules_are_grounds_of_their_stage(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["curate", "config.toml", "--until", "judge"]) == 0
    reads = json.loads((folder / "run" / "run.json").read_text())["stages"]["judge"]["reads"]
    assert reads["text.own.no_prices.words_at_most"] == 10
    assert main(["curate", "config.toml", "--until", "judge", "--set", "text.own.no_prices.words_at_most=3"]) == 2
    assert "text.own.no_prices.words_at_most = 10, now 3" in capsys.readouterr().err
