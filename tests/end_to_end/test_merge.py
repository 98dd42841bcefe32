"""`altalign merge`: the samples of one run over all the input, in the same bytes; what cannot be known is said."""

import io
import json
import shutil
from contextlib import chdir
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from altalign.cli import main
from tests.support.archives import response, write
from tests.support.curations import CONFIG, refused, summary, tree, write_input
from tests.support.finished_runs import rows_of

pytestmark = pytest.mark.runs

PARTS = ["input/part-0.parquet", "input/part-1.parquet"]


def write_config(folder: Path, run: str, paths: list[str], *, more: str = "") -> None:
    """Settings by which one run over all the input decides as several do: no n-gram is rare, no map is learned."""
    text = CONFIG.replace("vocabulary_size = 380\n", "").replace("per_text_at_most = 3", "per_text_at_most = 4")
    text = text.replace('[decontaminate]\ntest_sets = ["tests"]\n', "")
    text = text.replace('"input/*.parquet"', ", ".join(f'"{path}"' for path in paths)).replace('"run"', f'"{run}"')
    if run == "one":
        text = text[: text.index('[[input]]\nname = "words"')] + text[text.index("[text]") :]
    (folder / f"{run}.toml").write_text(text + more, encoding="utf-8")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of two inputs, and one of both."""
    folder = tmp_path_factory.mktemp("made")
    write_input(folder)
    tables = [pq.read_table(folder / part) for part in PARTS]
    said = pa.array([f"a lamp by the {word} river" for word in ("old", "red", "blue", "small", "two")] * 4)
    for part, table, twice in zip(PARTS, tables, (tables[0].slice(0, 0), tables[0].slice(0, 40)), strict=True):
        on_both = table.slice(100, 20).set_column(table.column_names.index("caption"), "caption", said)
        pq.write_table(pa.concat_tables([table, on_both, twice]), folder / part, row_group_size=50)
    with chdir(folder):
        for run, paths in {"both": PARTS, "one": PARTS[:1], "other": PARTS[1:]}.items():
            write_config(folder, run, paths)
            assert main(["curate", f"{run}.toml"]) == 0
    return folder


@pytest.fixture(autouse=True)
def _in_folder(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(made)


def shards(run: str) -> dict[str, str]:
    return {name: digest for name, digest in tree(Path(run)).items() if name.startswith("shards/")}


@pytest.mark.everyday
def test_merged_runs_have_the_bytes_of_one_run_over_all_the_input(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["merge", "one", "other", "--to", "merged"]) == 0
    assert shards("merged") == shards("both")
    last = summary(Path("merged"))["stages"][-1]
    kept = [len(rows_of(Path(run))) for run in ("one", "other", "both")]
    assert last["received"] == kept[0] + kept[1]
    assert last["kept"] == kept[2]
    assert last["dropped"].keys() == {"text_on_too_many_images", "image_has_too_many_texts", "pair_repeated"}
    assert main(["audit", "merged"]) == 0
    rows = [
        row
        for path in sorted(Path("merged/dropped/select").glob("*.parquet"))
        for row in pq.read_table(path).to_pylist()
    ]
    assert {row["reason"] for row in rows} == last["dropped"].keys()
    assert all(row["images_per_text"] > 4 for row in rows if row["reason"] == "text_on_too_many_images")
    assert {row["kept_key"] for row in rows if row["reason"] == "pair_repeated"} <= {
        row["key"] for row in rows_of(Path("both"))
    }
    assert main(["explain", "merged", "--key", next(row["key"] for row in rows)]) == 0
    capsys.readouterr()
    assert main(["status", "--lineage", "merged", "--json"]) == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert told["operation"] == "merge"
    assert [each["operation"] for each in told["of"]] == ["curate", "curate"]


def test_what_one_run_has_removed_stays_out_of_all_that_is_made_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree("one", "less")
    of_other = {row["key"] for row in rows_of(Path("both"))} & {row["key"] for row in rows_of(Path("other"))}
    gone = next(row["key"] for row in rows_of(Path("less")) if row["key"] in of_other)
    Path("gone").write_text(gone)
    Path("domain").write_text("B.example.\n")
    assert main(["remove", "less", "--keys", "gone", "--domains", "domain"]) == 0
    assert any("b.example" in (row["page_url"] or "") for row in rows_of(Path("other")))
    assert main(["merge", "less", "other", "--to", "of-less"]) == 0
    assert "pairs that one run has removed and another had: left out" in capsys.readouterr().err
    files = [*Path("of-less/shards").glob("*.parquet"), *Path("of-less").glob("dropped/*/*.parquet")]
    there = [row for path in files for row in pq.read_table(path).to_pylist()]
    assert not [row for row in there if row["key"] == gone or "b.example" in (row["page_url"] or "")]
    assert len(rows_of(Path("of-less"))) > 100
    assert gone in pq.read_table("of-less/removed.parquet")["hash"].to_pylist()
    assert main(["audit", "of-less"]) == 0
    assert main(["audit", "of-less", "--digest"]) == 0
    assert main(["merge", "less", "other", "--to", "of-less"]) == 0  # again: as it was
    for name, text in (("gone", gone), ("domain", "b.example")):
        option = "--keys" if name == "gone" else "--domains"
        Path(name).write_text(str(text))
        assert main(["remove", "of-less", option, name]) == 0  # of no file; asked for before
    capsys.readouterr()
    assert main(["status", "--lineage", "of-less", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["operation"] == "merge"


def test_runs_that_one_run_could_not_be_are_refused_with_what_differs(
    made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_config(made, "short", PARTS[:1], more="\n[audit]\nkeep_dropped = false\n")
    assert main(["curate", "short.toml", "--set", "text.words_at_least=2", "--set", "shards.samples_per_shard=7"]) == 0
    assert refused(capsys, "merge", "one", "short", "--to", "no").startswith(
        "one and short differ: text.words_at_least = 3 and 2; audit.keep_dropped = True and False; curate one of them"
    )
    shutil.copytree("short", "short-too")
    Path("keys").write_text("\n".join(row["key"] for row in rows_of(Path("other"))[:9]))
    assert main(["select", "other", "nine", "--list", "keys"]) == 0
    assert "made of the same run" in refused(capsys, "merge", "other", "nine", "--to", "no")
    assert "made of the same run" in refused(capsys, "merge", "one", "one", "--to", "no")
    assert "inside" in refused(capsys, "merge", "one", "other", "--to", "one/merged")
    assert "holds a run of its own" in refused(capsys, "merge", "one", "other", "--to", "both")


def test_runs_merge_that_came_by_other_ways_and_not_those_that_obey_other_rules(
    made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pq.write_table(pq.read_table(made / PARTS[0]).slice(0, 9).drop_columns(["url"]), made / "nine.parquet")
    write_config(made, "web", ["nine.parquet"], more='\n[fetch]\nsource = "web"\nallow_addresses = ["127.0.0.1:9"]\n')
    config = Path("web.toml").read_text(encoding="utf-8")
    config = config[: config.index('[[input]]\nname = "words"')] + config[config.index("[text]") :]
    Path("web.toml").write_text(config.replace("[text]", 'url_column = ""\n\n[text]', 1), encoding="utf-8")
    assert main(["curate", "web.toml"]) == 0
    assert main(["merge", "one", "web", "--to", "of-web"]) == 0
    said = json.loads(Path("of-web/manifest.json").read_bytes())["lineage"]["settings"]["not_known"]
    assert [line.partition(":")[0] for line in said][1:3] == ["fetch.source", "fetch.allow_addresses"]
    assert main(["audit", "of-web"]) == 0
    assert 'source = "web"' in Path("of-web/config.toml").read_text(encoding="utf-8")
    assert main(["curate", "web.toml", "--set", "run.folder=rude", "--set", "fetch.honour_robots=false"]) == 0
    assert "differ: fetch.honour_robots = True and False" in refused(capsys, "merge", "one", "rude", "--to", "no")


def test_images_of_archives_have_no_limit_of_bytes_beside_a_run_of_the_web(tmp_path: Path, made: Path) -> None:
    png = io.BytesIO()
    Image.effect_noise((64, 64), 90).save(png, "PNG")
    page = response("https://a.example/", b'<img src="/1.png" alt="the noise of an old lamp">')
    write(tmp_path / "a.warc", [page, response("https://a.example/1.png", png.getvalue(), "image/png")], "")
    pq.write_table(pq.read_table(made / PARTS[0]).slice(0, 9).drop_columns(["url"]), tmp_path / "nine.parquet")
    limits = "[image]\nshort_side_above_px = 1\n[fetch]\nbytes_at_most = 999\n"
    web = 'source = "web"\nallow_addresses = ["127.0.0.1:9"]\n'
    for name, text in {
        "hand": f'kind = "warc"\npaths = ["{tmp_path}/a.warc"]\n{limits}',
        "asked": f'kind = "table"\npaths = ["{tmp_path}/nine.parquet"]\nimage_column = "image"\n'
        f'url_column = ""\n{limits}{web}',
    }.items():
        (tmp_path / f"{name}.toml").write_text(f'[run]\nfolder = "{tmp_path}/{name}"\n[[input]]\n{text}')
        assert main(["curate", str(tmp_path / f"{name}.toml")]) == 0
    assert main(["merge", str(tmp_path / "hand"), str(tmp_path / "asked"), "--to", "of-archives"]) == 0
    assert main(["select", "of-archives", "selected", "--where", "width > 9"]) == 0
    for run in ("of-archives", "selected"):
        assert [row["bytes"] > 999 for row in rows_of(Path(run)) if row["source"] == "warc"] == [True]
        assert main(["audit", run]) == 0
