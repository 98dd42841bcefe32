"""Searches by texts, pictures and pairs, against a plain loop over all embeddings: server, Python and command."""

import io
import json
import pickle
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

import altalign
from altalign import storage
from altalign.audit.run_folder import RunFolder
from altalign.browse import atlas
from altalign.browse import pairs as browse_pairs
from altalign.browse import search as browse_search
from altalign.browse.search import TERMS_AT_MOST, WORDS_AT_MOST, has_word, searching
from altalign.browse.server import serving
from altalign.cli import main
from altalign.errors import AltalignError, UsageError
from altalign.models.model import opened
from altalign.pipelines.score.models import frequencies
from tests.browse.test_atlas import check_neighbours, needs_umap
from tests.pipelines import score_models
from tests.support.finished_runs import curated

pytestmark = pytest.mark.runs

SCORES = """
[[score]]
name = "look"
kind = "embedding"

[[score]]
name = "clip"
kind = "embedding"
model = "onnx:{0}"

[[score]]
name = "cosine"
kind = "similarity"
model = "onnx:{0}"
"""
Rows = dict[int, dict[str, Any]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("searched")
    made = curated(folder, rows=300)
    score_models.write(folder / "clip")
    (folder / "scores.toml").write_text(SCORES.format(folder / "clip"), encoding="utf-8")
    assert main(["score", str(made), "--with", str(folder / "scores.toml")]) == 0
    return made


@pytest.fixture(scope="module")
def without_model(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = tmp_path_factory.mktemp("without") / "run"
    shutil.copytree(run, copy)
    shutil.rmtree(copy / "scores" / "clip")
    return copy


@pytest.fixture(scope="module")
def address(run: Path) -> Iterator[str]:
    with serving(str(run)) as url:
        while not ask(url, "/api/run")["is_read"]:
            pass
        yield url


@pytest.fixture(scope="module")
def rows(address: str) -> Rows:
    """All rows as the grid has them, by number; those with an image at hand have its embeddings."""
    count = ask(address, "/api/count", {})["pairs"]
    found = []
    for first in range(0, count, 200):
        found += ask(address, "/api/rows", {"first": first, "count": 200})["rows"]
    return {row["n"]: row for row in found}


@pytest.fixture(scope="module")
def embeddings(run: Path, rows: Rows) -> dict[str, dict[int, np.ndarray]]:
    """By score and number of a row: those that the score files have, joined by key."""
    found = dict[str, dict[int, np.ndarray]]()
    for name in ("look", "clip"):
        of_kept = dict[str, Any]()
        for path in sorted((run / "scores" / name).glob("0*.parquet")):
            of_kept |= {row["key"]: row[name] for row in pq.read_table(path).to_pylist()}
        dropped = pq.read_table(run / "scores" / name / "dropped.parquet").to_pylist()
        of_dropped = {row["key"]: row[name] for row in dropped}
        found[name] = {}
        for n, row in rows.items():
            vector = (of_kept if row["reason"] == "kept" else of_dropped).get(row["key"])
            if vector is not None:
                found[name][n] = np.array(vector, np.float64)
    return found


def ask(url: str, path: str, asked: object = None) -> Any:
    return posted(url, path, None if asked is None else json.dumps(asked).encode())


def posted(url: str, path: str, data: bytes | None) -> Any:
    base, _, token = url.partition("/?token=")
    with urllib.request.urlopen(urllib.request.Request(f"{base}{path}?token={token}", data)) as answer:
        return json.loads(answer.read())


def found(url: str, *terms: dict[str, Any], count: int = 20, **asked: Any) -> Any:
    name = asked.pop("name", "")
    return ask(url, "/api/rows", {"search": {"terms": list(terms), "with": name}, "count": count, **asked})


def first_key(url: str) -> str:
    return ask(url, "/api/rows", {"count": 1})["rows"][0]["key"]


def refused(url: str, search: object) -> str:
    with pytest.raises(urllib.error.HTTPError) as error:
        ask(url, "/api/rows", {"search": search})
    with error.value as answer:
        assert answer.code == 400
        return json.loads(answer.read())["error"]


def is_order_of(answer: Any, query: np.ndarray, vectors: dict[int, np.ndarray]) -> None:
    """The answer has the cosines of the vectors that are nearest to a query, each beside its own pair."""
    query = query / np.linalg.norm(query)
    cosines = {n: float(vector @ query) for n, vector in vectors.items()}
    expected = sorted(cosines.values(), reverse=True)
    assert answer["total"] == len(vectors)
    assert len(answer["rows"]) == min(20, len(vectors))
    for row, cosine in zip(answer["rows"], expected, strict=False):
        assert row["cosine"] == pytest.approx(cosines[row["n"]], abs=2e-3)
        assert row["cosine"] == pytest.approx(cosine, abs=2e-3)


@pytest.mark.everyday
@pytest.mark.parametrize("name", ["look", "clip"])
def test_a_pair_finds_those_whose_images_are_nearest(
    address: str, rows: Rows, embeddings: dict[str, dict[int, np.ndarray]], name: str
) -> None:
    vectors = embeddings[name]
    kept, dropped = min(vectors), max(n for n, _ in vectors.items())
    for n in (kept, dropped):
        answer = found(address, {"pair": rows[n]["key"]}, name=name)
        assert answer["by"] == name
        is_order_of(answer, vectors[n], vectors)
        assert answer["rows"][0]["cosine"] == pytest.approx(1, abs=2e-3)


@pytest.mark.everyday
def test_texts_and_pairs_are_added_and_subtracted(
    address: str, run: Path, rows: Rows, embeddings: dict[str, dict[int, np.ndarray]]
) -> None:
    model = opened(f"onnx:{run.parent / 'clip'}", "test", with_texts=True)
    red, dog = (vector.astype(np.float64) for vector in model.of_texts(["a red ring", "the old dog"]))
    vectors = embeddings["clip"]
    n = next(n for n in vectors if rows[n]["image_url"])
    is_order_of(found(address, {"text": "a red ring"}), red, vectors)
    is_order_of(found(address, {"text": "a red ring"}, {"text": "the old dog", "minus": True}), red - dog, vectors)
    is_order_of(
        found(address, {"pair": rows[n]["key"]}, {"text": "the old dog"}, name="clip"), vectors[n] + dog, vectors
    )
    is_order_of(found(address, {"url": rows[n]["image_url"]}, name="clip"), vectors[n], vectors)


@pytest.mark.everyday
def test_a_filter_applies_before_the_ranking(
    address: str, rows: Rows, embeddings: dict[str, dict[int, np.ndarray]]
) -> None:
    vectors = embeddings["look"]
    query = vectors[min(vectors)]
    for filtered in ({"values": {"stage": ["image"]}}, {"text": "red"}, {"values": {"stage": ["nowhere"]}}):
        matching = {
            row["n"]
            for first in (0, 200)
            for row in ask(address, "/api/rows", {"filter": filtered, "first": first, "count": 200})["rows"]
        }
        among = {n: vector for n, vector in vectors.items() if n in matching}
        is_order_of(found(address, {"pair": rows[min(vectors)]["key"]}, name="look", filter=filtered), query, among)


def test_a_picture_that_is_given_finds_itself(address: str, run: Path, rows: Rows) -> None:
    made = altalign.open(run)
    sample = made.samples().head(1)
    (data,) = made.images(sample)
    name = posted(address, "/api/picture", data)["picture"]
    answer = found(address, {"picture": name}, name="look")
    assert answer["rows"][0]["cosine"] == pytest.approx(1, abs=2e-3)
    assert rows[answer["rows"][0]["n"]]["key"][:32] in {row["key"] for row in answer["rows"][:3]}
    for other in (b"no image", b"<svg xmlns='http://www.w3.org/2000/svg'/>"):
        bad = posted(address, "/api/picture", other)["picture"]
        assert "no image that can be decoded" in refused(address, {"terms": [{"picture": bad}]})
    for _ in range(16):
        posted(address, "/api/picture", data)
    assert "not kept any more" in refused(address, {"terms": [{"picture": name}], "with": "clip"})


@pytest.mark.everyday
def test_what_is_no_search_is_one_line(address: str, rows: Rows) -> None:
    flat = next(n for n, row in rows.items() if row["reason"] == "text_too_short")
    for search, words in (
        ({}, "a search is an object of terms"),
        ([], "a search is an object of terms"),
        ({"terms": [{"text": "a"}] * (TERMS_AT_MOST + 1)}, "16 at most"),
        ({"terms": [{"text": 3}]}, "a term of a search is"),
        ({"terms": [{"text": "a", "pair": "a"}]}, "a term of a search is"),
        ({"terms": [{"pair": True}]}, "a term of a search is"),
        ({"terms": [{"pair": "f" * 32}]}, "the run has no such pair"),
        ({"terms": [{"text": "a\0b"}]}, "no text to look for"),
        ({"terms": [{"pair": rows[flat]["key"]}]}, "no embedding in clip"),
        ({"terms": [{"url": "https://nowhere.example/'"}]}, "no image of the run has this URL"),
        ({"terms": [{"text": "a"}], "with": "none"}, "no embedding of the run (there are: clip, look)"),
        ({"terms": [{"text": "a"}], "with": 3}, "is no name of an embedding"),
        ({"terms": [{"text": "a"}], "with": "look"}, "look embeds no text"),
        ({"terms": [{"text": "a"}, {"text": "a", "minus": True}]}, "no embedding in clip"),
    ):
        assert words in refused(address, search), search


def test_without_a_model_of_texts_words_are_looked_for(without_model: Path) -> None:
    def share(row: dict[str, Any]) -> float:
        return sum(any(each.startswith(word) for each in row["caption"].lower().split()) for word in words) / len(words)

    words = ["red", "hous"]
    with serving(str(without_model)) as url:
        answer = found(url, {"text": "RED, “hous”."}, {"text": "blue", "minus": True}, count=200)
        assert answer["by"] == "words"
        assert {row["cosine"] for row in answer["rows"]} == {0.5, 1}
        assert all(share(row) == row["cosine"] for row in answer["rows"])
        assert not [row for row in answer["rows"] if "blue" in row["caption"].lower().split()]
        every = ask(url, "/api/rows", {"filter": {"text": "red"}, "count": 200})["rows"]
        starts = [row for row in every if share(row) and "blue" not in row["caption"].lower()]
        assert {row["n"] for row in starts} <= {row["n"] for row in answer["rows"]}
        assert found(url, {"text": "' OR 1"})["total"] == 0
        assert "that is not minus" in refused(url, {"terms": [{"text": "blue", "minus": True}]})
        many = " ".join(map(str, range(WORDS_AT_MOST + 1)))
        assert f"{WORDS_AT_MOST} at most" in refused(url, {"terms": [{"text": many}]})
        assert found(url, {"text": many.rpartition(" ")[0]})["by"] == "words"
        assert "look embeds no text" in refused(url, {"terms": [{"text": "red"}, {"pair": "0" * 32}]})


@pytest.mark.parametrize(
    ("word", "caption", "holds"),
    [
        ("ring", "two Rings, red", True),
        ("ring", "a string", False),
        ("ΟΔΟΣ", "ΟΔΟΣ", True),
        ("ल", "किला", False),  # behind a sign for a vowel, within a word
        ("किल", "यह किला", True),
        ("แดง", "แหวนสีแดง", True),
        ("輪", "赤い輪", True),
    ],
)
def test_words_begin_where_those_of_captions_do(word: str, caption: str, holds: bool) -> None:  # noqa: FBT001
    found = duckdb.execute(f"SELECT {has_word(word)} FROM (SELECT ? AS caption)", [caption]).fetchall()
    assert found == [(holds,)]


def without_files(run: Path, copy: Path, name: str) -> Path:
    """A copy of a run where an embedding has files of other side-cars alone."""
    shutil.copytree(run, copy)
    manifest = copy / "scores" / name / "manifest.json"
    facts = json.loads(manifest.read_bytes())
    facts["shards"] = {key: value[:1] for key, value in facts["shards"].items() if key != "nulls"} | {
        "nulls": {key: value[:1] for key, value in facts["shards"]["nulls"].items()},
        "of": ["0" * 64],
    }
    del facts["seal"]
    storage.write_sealed(str(manifest), facts)
    return copy


def test_an_embedding_that_no_image_has_finds_nothing_and_is_read(run: Path, tmp_path: Path) -> None:
    with serving(str(without_files(run, tmp_path / "run", "clip"))) as url:
        assert found(url, {"text": "a red ring"}, name="clip")["rows"] == []
        assert found(url, {"pair": first_key(url)}, name="look")["rows"]
        assert ask(url, "/api/run")["search_read"] == 1


def test_a_search_in_a_run_that_is_closed_is_one_line(run: Path) -> None:
    with browse_pairs.opened(RunFolder.open(str(run))) as pairs, searching(pairs) as search:
        pass
    with pytest.raises(AltalignError, match="closed while it was searched"):
        search.nearest("true", {"terms": [{"pair": "0" * 32}]})


def test_an_answer_outlives_its_place_among_the_last_ones(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browse_search, "SEARCHES_KEPT", 0)
    with browse_pairs.opened(RunFolder.open(str(run))) as pairs, searching(pairs) as search:
        assert len(search.nearest("true", {"terms": [{"text": "a red ring"}]}, 3).numbers) == 3


def test_a_model_that_has_changed_is_refused(run: Path, tmp_path: Path) -> None:
    copy, model = tmp_path / "run", tmp_path / "clip"
    shutil.copytree(run, copy)
    shutil.copytree(run.parent / "clip", model)
    manifest = copy / "scores" / "clip" / "manifest.json"
    score_models.write(run.parent / "other", seed=3)
    facts = json.loads(manifest.read_bytes())
    facts["settings"]["model"] = f"onnx:{run.parent / 'other'}"
    del facts["seal"]
    storage.write_sealed(str(manifest), facts)
    with serving(str(copy)) as url:
        assert "not as it was when" in refused(url, {"terms": [{"text": "a red ring"}]})
        assert found(url, {"pair": first_key(url)}, name="look")["by"] == "look"


def test_a_model_that_is_not_where_it_was_is_named(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    manifest = tmp_path / "run" / "scores" / "clip" / "manifest.json"
    facts = json.loads(manifest.read_bytes())
    facts["settings"]["model"] = "onnx:elsewhere"
    del facts["seal"]
    storage.write_sealed(str(manifest), facts)
    with pytest.raises(UsageError, match=r"elsewhere/image.onnx is not there;.*of the working directory"):
        altalign.open(tmp_path / "run").search("a red ring")


def test_a_damaged_score_is_named_and_the_pairs_are_there(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    path = next((copy / "scores" / "clip").glob("0*.parquet"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    pairs = browse_pairs.opened(RunFolder.open(str(copy)))
    with pairs as opened_pairs, searching(opened_pairs) as search:
        with pytest.raises(AltalignError, match=r"cannot be searched: .*clip/0.*not as it was written"):
            search.nearest("true", {"terms": [{"pair": "0" * 32}]})
        assert opened_pairs.is_read


def test_shards_that_are_not_measured_are_spoken_of(
    without_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(without_model, tmp_path / "run")
    manifest = tmp_path / "run" / "scores" / "look" / "manifest.json"
    facts = json.loads(manifest.read_bytes())
    del facts["seal"]
    shards = len(facts["shards"]["name"]) - 1  # and the dropped images
    facts["shards"]["of"][0] = "of another side-car"
    storage.write_sealed(str(manifest), facts)
    note = f"look lacks 1 of {shards} shards"
    with serving(str(tmp_path / "run")) as url:
        assert any(note in each for each in ask(url, "/api/run")["notes"])
    assert main(["search", str(tmp_path / "run"), "--text", "red"]) == 0
    assert note in capsys.readouterr().err


def test_a_run_without_embeddings_says_what_to_do(without_model: Path, tmp_path: Path) -> None:
    shutil.copytree(without_model, tmp_path / "run", ignore=shutil.ignore_patterns("scores"))
    made = altalign.open(tmp_path / "run")
    with pytest.raises(UsageError, match="no embeddings; `altalign score` measures them"):
        made.search(key=made.samples().head(1)["key"][0].as_py())
    assert made.search("red").column_names[0] == "share_of_words"


# Python, and the command ----------------------------------------------------------------------------------------------


@pytest.mark.everyday
def test_python_gets_a_table_with_pictures(run: Path, embeddings: dict[str, dict[int, np.ndarray]]) -> None:
    made = altalign.open(run)
    table = made.search("a red ring", k=7)
    assert table.column_names[0] == "cosine"
    assert "cosine_" in table.column_names  # the score
    cosines = table["cosine"].to_pylist()
    assert cosines == sorted(cosines, reverse=True)
    assert len(table) == 7
    model = opened(f"onnx:{run.parent / 'clip'}", "test", with_texts=True)
    red = model.of_texts(["a red ring"])[0]
    expected = sorted((float(vector @ red) for vector in embeddings["clip"].values()), reverse=True)
    assert cosines == pytest.approx(expected[:7], abs=2e-3)
    for data in table["picture"].drop_null().to_pylist():
        with Image.open(io.BytesIO(data)) as image:
            assert image.format == "WEBP"
    kept = made.search("a red ring", where="reason = 'kept' AND words >= 3", k=200)
    assert set(kept["reason"].to_pylist()) == {"kept"}
    assert min(kept["words"].to_pylist()) >= 3
    assert kept["picture"].null_count == 0


def test_python_takes_paths_bytes_pillow_and_urls(run: Path, tmp_path: Path) -> None:
    made = altalign.open(run)
    rows = made.samples().to_table()
    at = next(n for n, url in enumerate(rows["image_url"].to_pylist()) if url)
    row = rows.slice(at, 1)
    (data,) = made.images(row)
    (tmp_path / "a.jpg").write_bytes(data)
    with Image.open(io.BytesIO(data)) as image:
        pixels = image.convert("RGB")
    printed, url = pixels.convert("CMYK"), row["image_url"][0].as_py()
    for given in (str(tmp_path / "a.jpg"), tmp_path / "a.jpg", data, pixels, printed, url):
        table = made.search(image=given, k=3, embedding="look")
        assert table["cosine"][0].as_py() == pytest.approx(1, abs=2e-3)
    turned = Image.Exif()
    turned[0x0112] = 6
    pixels.save(tmp_path / "turned.png", exif=turned)
    with Image.open(tmp_path / "turned.png") as image:
        tables = [made.search(image=given, k=9, embedding="look") for given in (image, tmp_path / "turned.png")]
    assert tables[0].equals(tables[1])
    for wrong, words in (
        ("nowhere.jpg", "no such file"),
        (3, "image: int"),
        ("HTTPS://nowhere.example/a.jpg", "no image of the run"),
        ("ftp://nowhere.example/a.jpg", "no kind of storage"),
    ):
        with pytest.raises(UsageError, match=words):
            made.search(image=wrong)
    for wrong, words in (
        ({}, "nothing to search for"),
        ({"text": "a", "k": 0}, "k = 0"),
        ({"text": "a", "where": "nothing > 3"}, "no column 'nothing'"),
        ({"text": "a", "where": "version()"}, "not understood"),
        ({"text": "a", "where": "file = 'a.tar'"}, "no column 'file'"),  # of the table, another one
        ({"text": "\udcff"}, "no text to look for"),
        ({"key": "\udcff"}, "no text to look for"),
        ({"key": "f" * 32}, "no such pair"),
    ):
        with pytest.raises(UsageError, match=words):
            made.search(**wrong)


def test_a_run_that_was_searched_still_goes_to_workers(run: Path) -> None:
    made = altalign.open(run)
    made.search("a red ring", k=1)
    assert pickle.loads(pickle.dumps(made)).search("a red ring", k=1)["key"] == made.search("a red ring", k=1)["key"]


def test_a_notebook_shows_the_pictures_of_a_search_and_no_others(run: Path, ipython: Any) -> None:
    table = altalign.open(run).search("a red ring", k=3)
    formatter = ipython.display_formatter.formatters["text/html"]
    assert formatter(table).count("<figure") == 3
    assert formatter(table.replace_schema_metadata(None)) is None
    assert formatter(table.select(["cosine", "key"])) is None


@pytest.mark.everyday
def test_the_command_lists_what_is_nearest(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["search", str(run), "--text", "a red ring", "-k", "3", "--where", "stage = 'kept'"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 6
    table = altalign.open(run).search("a red ring", k=3, where="stage = 'kept'")
    for at, row in enumerate(table.to_pylist()):
        assert lines[2 * at].split() == [f"{row['cosine']:.3f}", row["key"], "kept"]
        assert len(lines[2 * at + 1]) <= 80
    assert main(["search", str(run), "--text", "a", "--where", "words > 10000"]) == 0
    assert "no pair is like that" in capsys.readouterr().out
    assert main(["search", str(run)]) == 2
    assert "nothing to search for" in capsys.readouterr().err


def test_flat_images_have_no_embedding() -> None:
    assert np.isnan(frequencies(np.full((64, 64, 3), 9, np.uint8))).all()


@needs_umap
@pytest.mark.parametrize("name", ["look", "clip"])
def test_a_map_is_of_the_embeddings_that_score_made(run: Path, name: str, tmp_path: Path) -> None:
    files = sorted((run / "scores" / name).glob("0*.parquet"))
    of = {row["key"]: row[name] for path in files for row in pq.read_table(path).to_pylist() if row[name] is not None}
    assert atlas.write(str(run), name, str(tmp_path / "map.parquet"))[0] == len(of)
    mapped = pq.read_table(tmp_path / "map.parquet").to_pylist()
    assert [row["key"] for row in mapped] == [*of]
    near = [(row["neighbors"]["ids"], row["neighbors"]["distances"]) for row in mapped]
    check_neighbours([*of.values()], near)
