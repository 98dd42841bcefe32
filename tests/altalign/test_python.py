"""What Python programs call: the functions of the commands, in a process that stays the caller's."""

import asyncio
import gc
import io
import logging
import signal
import subprocess
import sys
import textwrap
import threading
import tomllib
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from PIL import Image

import altalign
from altalign import errors, storage
from altalign.audit.opened import Run
from altalign.data.schema import COUNTS, DROPPED, SAMPLE
from tests import made_once
from tests.object_stores.servers import Server
from tests.support.curations import Finished, environ, tree, write_input
from tests.support.curations import altalign as command

pytestmark = pytest.mark.runs

HEAVY = {"apache_beam", "torch", "numba"}  # pyarrow itself imports pandas, where that is installed


def said(script: str, folder: Path) -> str:
    """What a Python program prints that works in a folder."""
    argv = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(argv, cwd=folder, env=environ(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def finished(embedded: Finished, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A finished run, opened; read only."""
    monkeypatch.chdir(embedded.folder)
    return altalign.open("run")


@pytest.fixture
def own(embedded: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The same, of links, to be changed by putting other files in the place of these."""
    made_once.linked(embedded.folder / "run", tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    return altalign.open("run")


# Reading -------------------------------------------------------------------------------------------------------------


def test_importing_imports_nothing_and_reading_a_run_nothing_heavy(embedded: Finished) -> None:
    script = """
        import sys
        before = set(sys.modules)
        import altalign
        print(*{name.partition(".")[0] for name in set(sys.modules) - before} - sys.stdlib_module_names)
        run = altalign.open("run")
        print("pyarrow" in sys.modules)
        run.counts, run.settings, repr(run), run._repr_html_(), run.gallery()._repr_html_(), run.dropped().count_rows()
        rows = run.samples().head(3)
        list(run.images(rows)), run.to_torch()[0]
        rare = run.dropped("text_has_rare_ngram").head(1)
        for name in ("key", "source_key"):
            run.explain(**{name: rows[name][0].as_py()})
        run.explain(text=rare["caption"][0].as_py()), run.explain(url=rare["image_url"][0].as_py())
        print(*sorted({name.partition(".")[0] for name in sys.modules}))
    """
    at_import, has_arrow, at_the_end = said(script, embedded.folder).splitlines()
    assert at_import == "altalign"
    assert has_arrow == "True"
    assert not set(at_the_end.split()) & HEAVY


def test_counts_are_the_table_of_the_run(finished: Run) -> None:
    assert finished.counts.schema == COUNTS
    assert finished.counts.equals(pq.read_table("run/counts.parquet"))


def test_samples_are_those_of_the_side_cars_in_their_order_with_the_name_of_the_shard(finished: Run) -> None:
    paths = sorted(Path("run/shards").glob("*.parquet"))
    assert len(paths) > 1
    rows = finished.samples().to_table()
    side_cars = pa.concat_tables(map(pq.read_table, paths)).drop_columns("image")  # `shard` and the places say it
    assert rows.drop_columns("shard").equals(side_cars.combine_chunks())
    assert rows["shard"].to_pylist() == [f"{p.stem}.tar" for p in paths for _ in range(pq.read_metadata(p).num_rows)]
    assert finished.samples().schema.names == [*SAMPLE.names, "shard"]


def test_a_scan_takes_columns_and_a_filter_and_can_be_repeated(finished: Run) -> None:
    samples = finished.samples()
    wide = samples.to_table(["key", "width"], filter=pc.field("width") >= 400)
    assert wide.num_rows == samples.count_rows(filter=pc.field("width") >= 400) > 0
    assert min(wide["width"].to_pylist()) >= 400
    found = duckdb.sql("select count(*), min(width) from samples where width >= 400").fetchall()
    assert found == [(wide.num_rows, pc.min(wide["width"]).as_py())]


def test_rows_that_were_dropped_are_those_of_the_counts(finished: Run) -> None:
    assert finished.dropped().schema == DROPPED
    for row in finished.counts.to_pylist():
        if row["reason"] != "kept" and row["stage"] != "extract":
            of_reason = finished.dropped(row["reason"]).count_rows(filter=pc.field("source") == row["source"])
            assert of_reason == row["rows"], row
    both = finished.dropped("text_too_short", "image_damaged")
    assert set(both.to_table(["reason"])["reason"].to_pylist()) == {"text_too_short", "image_damaged"}
    dropped = duckdb.from_arrow(finished.dropped("text_too_short"))
    assert dropped.select("stage, reason").distinct().fetchall() == [("judge", "text_too_short")]


def test_images_are_those_of_the_rows_in_their_order(finished: Run) -> None:
    rows = finished.samples().to_table(["shard", "tar_offset", "tar_bytes", "width", "height"])
    rows = rows.take(pa.array([*range(len(rows) - 1, -1, -3)]))
    images = list(finished.images(rows))
    assert [Image.open(io.BytesIO(image)).size for image in images] == [
        *zip(rows["width"].to_pylist(), rows["height"].to_pylist(), strict=True)
    ]
    assert list(finished.images(rows.to_batches()[0])) == images[: len(rows.to_batches()[0])]


def test_settings_are_a_new_dict_that_names_the_run(finished: Run) -> None:
    settings = finished.settings
    assert settings["run"]["folder"] == "run"
    assert settings["text"]["vocabulary_size"] == 380
    settings["text"]["vocabulary_size"] = 1
    assert finished.settings["text"]["vocabulary_size"] == 380


@pytest.mark.parametrize("by", ["key", "url", "text"])
def test_an_explanation_is_what_the_command_prints(finished: Run, by: str, capsys: pytest.CaptureFixture[str]) -> None:
    from altalign.cli import main

    row = finished.dropped("image_too_small").head(1).to_pylist()[0]
    value = row[{"key": "key", "url": "image_url", "text": "caption"}[by]]
    found = finished.explain(**{by: value})
    assert main(["explain", "run", f"--{by}", value]) == 0
    assert capsys.readouterr().out == f"{found}\n"
    assert row["key"] in {each["key"] for each in found.rows}
    assert found.kept + found.dropped >= len(found.rows) == len(found.lines)


def test_a_run_is_shown_as_its_funnel_in_80_columns(finished: Run) -> None:
    first, head, *steps = repr(finished).splitlines()
    assert first == "run: finished"
    assert head.split()[:2] == ["after", "pairs"]
    assert [line.split()[0] for line in steps] == [
        *("pool", "extract", "judge", "fetch", "image", "decontaminate", "shards")
    ]
    assert steps[-1].split()[1] == f"{finished.samples().count_rows():,}"
    assert max(map(len, repr(finished).splitlines())) <= 80


def test_a_notebook_shows_the_funnel_and_thumbnails_and_loads_nothing(finished: Run) -> None:
    shown = finished._repr_html_()  # pyright: ignore[reportPrivateUsage]
    assert all(f">{step}<" in shown for step in ("pool", "judge", "shards"))
    assert 1 <= shown.count('<img src="data:image/') <= 12
    assert not [part for part in ("<script", "<style", "<link", 'src="http') if part in shown]


def test_a_gallery_says_its_rule_and_shows_its_samples(finished: Run) -> None:
    gallery = finished.gallery("image_too_small")
    assert "image.short_side_above_px = 200" in gallery.about
    assert len(gallery) == len(gallery.cards) > 0
    assert gallery.rows == finished.dropped("image_too_small").count_rows()
    shown = gallery._repr_html_()  # pyright: ignore[reportPrivateUsage]
    assert shown.count("<figure") == len(gallery)
    assert "<code>image.short_side_above_px = 200</code>" in shown
    assert repr(gallery).startswith(f"image_too_small, {len(gallery)} of {gallery.rows}: ")
    assert len(finished.gallery()) > 0
    assert len(finished.gallery("image_nsfw")) == 0


def test_what_the_web_wrote_cannot_become_html_or_control_a_terminal(own: Run) -> None:
    path = Path("run/audit/samples.parquet")
    table = pq.read_table(path)
    evil = pa.array(["<script>alert(1)</script>\x1b[31m\u202e"] * len(table), pa.string())
    path.unlink()
    pq.write_table(table.set_column(table.schema.get_field_index("caption"), "caption", evil), path)
    gallery = own.gallery()
    assert "<script" not in own._repr_html_() + gallery._repr_html_()  # pyright: ignore[reportPrivateUsage]
    assert "\x1b" not in repr(gallery) + gallery._repr_html_()  # pyright: ignore[reportPrivateUsage]


def test_torch_takes_the_samples_by_number(finished: Run) -> None:
    torch = pytest.importorskip("torch")
    pairs = finished.to_torch(lambda image: torch.tensor(image.size), where=pc.field("width") >= 400)
    loaded = [*torch.utils.data.DataLoader(pairs, batch_size=8, num_workers=2)]
    rows = finished.samples().to_table(["width", "height", "caption"], filter=pc.field("width") >= 400)
    assert torch.cat([sizes for sizes, _ in loaded]).tolist() == [
        [row["width"], row["height"]] for row in rows.to_pylist()
    ]
    assert [caption for _, captions in loaded for caption in captions] == rows["caption"].to_pylist()
    assert isinstance(finished.to_torch()[0][0], Image.Image)


@pytest.mark.filterwarnings("ignore")
def test_hugging_face_reads_the_samples_as_a_stream(finished: Run, tmp_path: Path) -> None:
    pytest.importorskip("datasets", reason="`make test-readers` has it")
    stream = finished.to_hf(where=pc.field("width") >= 400)
    rows = [*stream]
    wanted = finished.samples().to_table(filter=pc.field("width") >= 400).to_pylist()
    assert [{name: row[name] for name in wanted[0]} for row in rows] == wanted
    assert [row["image"].size for row in rows] == [(row["width"], row["height"]) for row in wanted]
    assert stream.num_shards == len([*Path("run/shards").glob("*.tar")])


# What is wrong -------------------------------------------------------------------------------------------------------


def test_wrong_use_is_an_error_of_the_project_in_one_line(finished: Run, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for call, wanted in (
        (lambda: altalign.open("nowhere"), "nowhere: no such run folder; give the [run] folder of a curation"),
        (lambda: altalign.open(tmp_path / "empty"), "no run of altalign (it has no run.json)"),
        (lambda: altalign.open("ftp://x/y"), "no kind of storage that is known"),
        (lambda: finished.dropped("text_to_short"), "text_to_short: no such reason"),
        (lambda: finished.gallery("text_to_short"), "text_to_short: no such reason"),
        (lambda: finished.explain(), "give one of the four"),
        (lambda: finished.explain(key="12"), "12: not 32 hex digits"),
        (lambda: altalign.audit("nowhere"), "nowhere: no such run folder"),
        (lambda: altalign.audit(finished, "nowhere"), "nowhere: no such run folder"),
        (lambda: altalign.curate("nowhere.toml"), "nowhere.toml: no such settings file"),
        (lambda: altalign.curate("config.toml", rerun="jugde"), "rerun = 'jugde': no such stage"),
        (
            lambda: altalign.curate({"input": {"paths": ["x"]}, "text": {"words_at_lest": 3}}),
            "words_at_lest: no such setting",
        ),
        (lambda: altalign.curate({"input": {"paths": ["x"]}, "text": {3: 3}}), "settings [text] 3: no such setting"),
        (lambda: altalign.curate({"input": None}), "settings [input] = null: a section is meant"),
        (lambda: altalign.curate({}), "settings [input]: missing"),
    ):
        with pytest.raises(errors.UsageError) as raised:
            call()
        assert wanted in str(raised.value)
        assert "\n" not in str(raised.value)


def test_an_unfinished_run_says_what_it_has_not_yet(own: Run) -> None:
    Path("run/manifest.json").unlink()
    assert not own.is_finished
    assert repr(own).splitlines()[:2] == ["run: not finished", "extract: finished"]
    assert "not finished" in own._repr_html_()  # pyright: ignore[reportPrivateUsage]
    assert own.dropped("text_too_short").count_rows() > 0
    for call in (own.samples, own.gallery, own.to_torch, lambda: own.counts, lambda: altalign.audit(own)):
        with pytest.raises(errors.UsageError, match=r"run: not finished, so .*`altalign curate` finishes it"):
            call()


def test_a_damaged_file_is_named_with_what_makes_it_anew(own: Run) -> None:
    rows = own.samples().head(2)
    for name in ("counts.parquet", "audit/samples.parquet", "config.toml", "manifest.json", "shards/00000.tar"):
        path = Path("run", name)
        whole = path.read_bytes()
        path.unlink()
        path.write_bytes(b"{")
        with pytest.raises(errors.DamagedError, match=rf"^run/{name}: damaged: .*`altalign curate` with --re"):
            (own.counts, own.gallery(), own.settings, own.samples(), [*own.images(rows)])
        path.write_bytes(whole)


def test_a_run_that_kept_no_dropped_rows_says_so(own: Run) -> None:
    path = Path("run/config.toml")
    text = path.read_text(encoding="utf-8")
    path.unlink()
    path.write_text(text.replace("keep_dropped = true", "keep_dropped = false"), encoding="utf-8")
    with pytest.raises(errors.UsageError, match=r"run: it kept no dropped rows \(\[audit\] keep_dropped = false\)"):
        own.dropped()


# Curating ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The settings of the small input, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return tomllib.loads(write_input(tmp_path, rows=120).read_text(encoding="utf-8").replace("= 380", "= 150"))


@pytest.mark.everyday
def test_a_dict_gives_the_same_bytes_as_the_command_and_a_path_does(
    config: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    told: list[Any] = []
    run = altalign.curate(config, progress=told.append)
    assert capfd.readouterr() == ("", "")
    assert run.is_finished
    assert Path("run/report.html").is_file()
    assert (told[-1].step, told[-1].units_finished) == ("write", told[-1].units)
    Path("config.toml").write_text(Path("config.toml").read_text(encoding="utf-8").replace("= 380", "= 150"), "utf-8")
    done = command(Path.cwd(), "curate", "config.toml", "--set", "run.folder=other")
    assert done.returncode == 0, done.stderr
    assert tree(Path("run")) == tree(Path("other"))
    assert altalign.curate(Path("config.toml"), progress=False).folder == "run"  # finished: nothing is done
    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("ipython")
def test_a_notebook_curates(config: dict[str, Any]) -> None:
    assert altalign.curate(config, progress=False).is_finished


def test_settings_of_a_run_can_be_changed_and_given_back(config: dict[str, Any]) -> None:
    before = altalign.curate(config, progress=False)
    settings = before.settings
    settings["text"]["words_at_least"] = 5
    with pytest.raises(errors.UsageError, match=r"made with text.words_at_least = 3, now 5; .* --rerun"):
        altalign.curate(settings)
    settings["run"]["folder"] = Path("after")
    settings["input"][0]["paths"] = tuple(settings["input"][0]["paths"])
    after = altalign.curate(settings, progress=False)
    found = altalign.audit(before, after)
    assert found.settings.to_pylist() == [{"name": "text.words_at_least", "a": "3", "b": "5"}]
    changed = [row for row in found.verdicts.to_pylist() if row["from"] == "kept" != row["to"]]
    assert {row["to"] for row in changed} == {"judge: text_too_short"}
    assert sum(row["pairs"] for row in changed) == before.samples().count_rows() - after.samples().count_rows()
    assert {row["key"] for row in found.examples.to_pylist()}
    assert found.counts.num_rows > 0
    assert repr(found).startswith("A: run\nB: after\n")
    settings["run"]["folder"] = "run"
    assert altalign.curate(settings, rerun=True, progress=False).samples().count_rows() == after.samples().count_rows()
    assert all(check.passed for check in altalign.audit("run"))


def test_where_the_command_exits_with_1_an_error_is_raised(config: dict[str, Any]) -> None:
    with pytest.raises(errors.AltalignError, match=r"run: nothing is left of the pool; image dropped .* as image_too_"):
        altalign.curate(config | {"image": {"short_side_above_px": 5000}}, progress=False)
    assert altalign.open("run").samples().count_rows() == 0


def test_it_works_outside_the_main_thread_and_beside_an_event_loop_and_leaves_the_process_as_it_was(
    config: dict[str, Any],
) -> None:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before, seen, made = [signal.getsignal(number) for number in numbers], [], []

    def look(_: Any) -> None:
        seen.append([signal.getsignal(number) for number in numbers])

    def work() -> None:
        made.append(altalign.curate(config, progress=look))

    async def loop() -> None:
        made.append(altalign.curate(config | {"run": {"folder": "two"}}, progress=look))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert all(handlers == before for handlers in seen)
    seen.clear()
    asyncio.run(loop())
    assert all(handlers[1:] == before[1:] for handlers in seen)  # Ctrl-C alone is ours, while it works
    assert [signal.getsignal(number) for number in numbers] == before
    assert [run.is_finished for run in made] == [True, True]
    assert gc.get_freeze_count() == 0
    assert not logging.getLogger().filters


def test_ctrl_c_is_a_keyboard_interrupt_and_the_next_call_goes_on(tmp_path: Path) -> None:
    write_input(tmp_path)
    script = """
        import os, signal, altalign
        def tell(progress):
            if progress.step == "fetch/units" and not asked:
                asked.append(os.kill(os.getpid(), signal.SIGINT))
        asked = []
        try:
            altalign.curate("config.toml", progress=tell)
        except KeyboardInterrupt:
            print("interrupted", altalign.open("run").is_finished)
        print(altalign.curate("config.toml", progress=False).is_finished)
    """
    assert said(script, tmp_path) == "interrupted False\nTrue\n"


# In an object store --------------------------------------------------------------------------------------------------


@pytest.mark.stores
def test_a_run_in_a_store_is_read_as_one_on_a_disk(
    embedded: Finished, s3: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(embedded.folder)
    for path in Path("run").rglob("*"):
        if path.is_file() and path.parts[1] not in ("work", "log"):
            storage.write_bytes(f"{s3.url}/{path}", path.read_bytes())
    there, here = altalign.open(f"{s3.url}/run"), altalign.open("run")
    before = len(s3.requests())
    there.samples()
    assert len(s3.requests()) - before <= 3  # whether there is a manifest, and its bytes
    assert there.samples().to_table().equals(here.samples().to_table())
    assert there.dropped("image_damaged").to_table().equals(here.dropped("image_damaged").to_table())
    assert there.counts.equals(here.counts)
    rows = here.samples().head(40)
    assert list(there.images(rows)) == list(here.images(rows))
    assert there.to_torch()[3][1] == here.to_torch()[3][1]
    key = rows["key"][0].as_py()
    assert str(there.explain(key=key)) == str(here.explain(key=key))
    assert repr(there).splitlines()[1:] == repr(here).splitlines()[1:]
    assert there._repr_html_().count("<img") == here._repr_html_().count("<img")  # pyright: ignore[reportPrivateUsage]
    assert altalign.audit(here, there).verdicts.to_pylist()
    with pytest.raises(errors.UsageError, match="nowhere: no such run folder"):
        altalign.open(f"{s3.url}/nowhere")
