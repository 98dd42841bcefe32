"""What `altalign browse` answers, against plain loops over all rows of a run; and whom it refuses."""

import asyncio
import http.client
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections import ChainMap, Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from PIL import Image

from altalign import storage
from altalign.audit import rows as run_rows
from altalign.audit.run_folder import RunFolder
from altalign.browse import pairs as browse_pairs
from altalign.browse.filters import Facets, of_select
from altalign.browse.pair import Pictures, _rules, details
from altalign.browse.server import Guard, serving
from altalign.browse.what_if import MOVABLE, what_if
from altalign.cli import main
from altalign.data.audit_tables import SAMPLES
from altalign.data.reasons import KEPT, RULES, Stage
from altalign.errors import UnreadableError, UsageError
from altalign.rules import own
from tests.object_stores.servers import Server
from tests.support.curations import environ, tree
from tests.support.finished_runs import curated

pytestmark = pytest.mark.runs

SCORES = '[[score]]\nname = "text"\nkind = "text"\n[[score]]\nname = "language"\nkind = "language"\n'


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("browsed")
    made = curated(folder, rows=300)
    (folder / "scores.toml").write_text(SCORES, encoding="utf-8")
    assert main(["score", str(made), "--with", str(folder / "scores.toml")]) == 0
    return made


@pytest.fixture(scope="module")
def address(run: Path) -> Iterator[str]:
    with serving(str(run)) as url:
        while not ask(url, "/api/run")["is_read"]:
            pass
        yield url


@pytest.fixture(scope="module")
def rows(run: Path) -> list[dict[str, Any]]:
    """All rows of the run, dropped ones too, with their scores, in no order."""
    found = []
    for path in sorted((run / "shards").glob("*.parquet")):
        scored = [pq.read_table(run / "scores" / name / path.name).to_pylist() for name in ("text", "language")]
        for row, *more in zip(pq.read_table(path).to_pylist(), *scored, strict=True):
            found.append({"stage": "kept", "reason": "kept", "failed": [], **ChainMap(row, *more)})
    for path in sorted((run / "dropped").rglob("*.parquet")):
        found += pq.read_table(path).to_pylist()
    return found


def ask(url: str, path: str, asked: object = None, **headers: str) -> Any:
    """The JSON of an answer."""
    return json.loads(fetched(url, path, asked, **headers))


def fetched(url: str, path: str, asked: object = None, **headers: str) -> bytes:
    base, _, token = url.partition("/?token=")
    sign = "&" if "?" in path else "?"
    data = None if asked is None else json.dumps(asked).encode()
    request = urllib.request.Request(
        f"{base}{path}{sign}token={token}", data, {each.replace("_", "-"): value for each, value in headers.items()}
    )
    with urllib.request.urlopen(request) as answer:
        return answer.read()


def refused(url: str, path: str, asked: object = None, **headers: str) -> tuple[int, str]:
    with pytest.raises(urllib.error.HTTPError) as error:
        fetched(url, path, asked, **headers)
    with error.value as answer:
        return answer.code, json.loads(answer.read())["error"]


def host_of(row: Mapping[str, Any]) -> str | None:
    return urllib.parse.urlsplit(row.get("image_url") or "").hostname


def is_small(row: Mapping[str, Any]) -> bool:
    return row.get("width") is not None and min(row["width"], row["height"]) <= 230


def names_b(row: Mapping[str, Any]) -> bool:
    return any("b.example" in (row.get(name) or "") for name in ("page_url", "image_url"))


FILTERS: list[tuple[dict[str, Any], Callable[[Mapping[str, Any]], bool]]] = [
    ({}, bool),
    ({"values": {"stage": ["kept"]}}, lambda row: row["stage"] == "kept"),
    (
        {"values": {"reason": ["text_too_short", "kept"]}, "ranges": {"words": [2, None]}},
        lambda row: row["reason"] in ("text_too_short", "kept") and (row["words"] or 0) >= 2,
    ),
    (
        {"ranges": {"words": [3, 4], "short_side": [None, 230]}},
        lambda row: row["words"] in (3, 4) and is_small(row),
    ),
    ({"values": {"host": [None]}}, lambda row: host_of(row) is None),
    ({"text": "RED"}, lambda row: "red" in (row["caption"] or "").lower()),
    ({"url": "b.example"}, names_b),
    ({"ranges": {"text_characters": [12, 20]}}, lambda row: 12 <= (row.get("text_characters") or 0) <= 20),
    ({"values": {"language": ["en"]}}, lambda row: row.get("language") == "en"),
    ({"values": {"caption": ['it\'s "new"; DROP TABLE pairs']}}, lambda row: row["caption"] is True),
]


@pytest.mark.everyday
@pytest.mark.parametrize(("asked", "holds"), FILTERS, ids=[json.dumps(asked) for asked, _ in FILTERS])
def test_counts_rows_facets_and_keys_are_those_of_a_plain_loop(
    address: str, rows: list[dict[str, Any]], asked: dict[str, Any], holds: Callable[[Mapping[str, Any]], bool]
) -> None:
    expected = [row for row in rows if holds(row)]
    count = ask(address, "/api/count", {"filter": asked})
    assert (count["pairs"], count["images"]) == (len(expected), len({row["image_id"] for row in expected} - {None}))
    listed = []
    while len(listed) < len(expected):
        window = ask(address, "/api/rows", {"filter": asked, "first": len(listed), "count": 100, "sort": "-words"})
        assert window["total"] == len(expected)
        listed += window["rows"]
    assert Counter((row["key"], row["reason"]) for row in listed) == Counter(
        (row["key"], row["reason"]) for row in expected
    )
    words = [row["words"] for row in listed if row["words"] is not None]
    assert words == sorted(words, reverse=True)
    for name, value in {"reason": lambda row: row["reason"], "host": host_of}.items():
        if name not in asked.get("values", {}):
            found = ask(address, "/api/facet", {"filter": asked, "name": name})
            assert dict(found["values"]) == Counter(map(value, expected))
    if "words" not in asked.get("ranges", {}):
        drawn = ask(address, "/api/facet", {"filter": asked, "name": "words"})
        assert sum(pairs for _, _, pairs in drawn["bins"]) == len(words)
        assert drawn["missing"] == len(expected) - len(words)
    keys = fetched(address, f"/keys?filter={urllib.parse.quote(json.dumps(asked))}").decode().split()
    assert sorted(keys) == sorted(row["key"] for row in expected if row["reason"] == "kept")


def test_every_number_is_that_of_the_query_that_is_shown(run: Path) -> None:
    with browse_pairs.opened(RunFolder.open(str(run))) as pairs:
        while not pairs.is_read:
            pass
        asked = {"values": {"stage": ["kept", "judge"]}, "text": "a"}
        count, facet = pairs.count(asked), pairs.facet(asked, "reason")
        assert pairs.query(count["sql"]) == [(count["pairs"], count["images"])]
        assert [[value, number] for value, number, *_ in pairs.query(facet["sql"])] == facet["values"]
        moved = what_if(pairs, asked, {"text.words_at_least": 2, "text.words_at_most": 4})
        of_kept, of_comes = moved["sql"].split(";")
        assert {goes: numbers for goes, *numbers in pairs.query(of_kept)} == {
            goes: [*moved["goes" if goes else "stays"]] for goes in (True, False)
        }
        comes = {each["stage"]: [each["pairs"], each["images"]] for each in moved["comes"]}
        assert {stage: numbers for stage, *numbers in pairs.query(of_comes)} == comes
        assert comes


def would_drop(row: Mapping[str, Any], thresholds: Mapping[str, float]) -> set[str]:
    words, size = row["words"], sorted((row["width"], row["height"])) if row.get("width") else None
    found = set()
    if words is not None:
        found |= {"text_too_short"} if words < thresholds.get("text.words_at_least", 3) else set()
        found |= {"text_too_long"} if words > thresholds.get("text.words_at_most", 20) else set()
    if size:
        found |= {"image_too_small"} if size[0] <= thresholds.get("image.short_side_above_px", 200) else set()
    return found


@pytest.mark.parametrize(
    "thresholds",
    [
        {"text.words_at_least": 2},
        {"text.words_at_least": 4, "text.words_at_most": 30},
        {"text.words_at_least": 1, "image.short_side_above_px": 120},
        {"image.short_side_above_px": 225, "text.words_at_most": 4},
    ],
)
def test_moved_thresholds_keep_what_a_loop_over_all_rows_keeps(
    address: str, rows: list[dict[str, Any]], thresholds: dict[str, float]
) -> None:
    found = ask(address, "/api/what-if", {"thresholds": thresholds})
    moved = {rule["reason"] for rule in ask(address, "/api/run")["rules"] if rule["setting"] in thresholds}
    kept = [row for row in rows if row["reason"] == "kept"]
    goes = [row for row in kept if would_drop(row, thresholds) & moved]
    stays = [row for row in kept if not would_drop(row, thresholds) & moved]
    comes: dict[str, set[str]] = {}
    for row in rows:
        failed = {*(row["failed"] or [])}
        if failed and failed <= moved and not would_drop(row, thresholds) & moved:
            comes.setdefault(row["stage"], set()).add(row["key"])
    assert found["kept"][0] == len(kept)
    assert found["goes"] == [len(goes), len({row["image_id"] for row in goes})]
    assert found["stays"] == [len(stays), len({row["image_id"] for row in stays})]
    assert {each["stage"]: each["pairs"] for each in found["comes"]} == {
        stage: len(keys) for stage, keys in comes.items()
    }
    assert {row["key"] for row in found["samples"]["goes"]} <= {row["key"] for row in goes}
    assert len(found["samples"]["goes"]) == min(12, len(goes))
    for setting, value in thresholds.items():
        assert f"{setting.rpartition('.')[2]} = {value}" in found["toml"]
        assert f"--set {setting}={value}" in found["command"]


def test_thresholds_of_which_nothing_is_known_are_refused(address: str) -> None:
    assert refused(address, "/api/what-if", {"thresholds": {"text.images_per_text_at_most": 1}}) == (
        400,
        "text.images_per_text_at_most = 1: can only be loosened: the run keeps no value of pairs within it",
    )
    assert refused(address, "/api/what-if", {"thresholds": {"text.vocabulary_size": 1}})[0] == 400


def test_every_rule_with_a_threshold_can_be_moved_or_is_known_not_to(run: Path) -> None:
    config = RunFolder.open(str(run)).config
    with_threshold = {
        rule.name
        for stage in (Stage.JUDGE, Stage.IMAGE)
        for rule in own.rules(stage, config, ())
        if rule.words.threshold
    }
    assert with_threshold - MOVABLE.keys() == {"text_too_large", "text_has_rare_ngram"}  # of bytes; of the vocabulary
    assert {rule.name for rules in RULES.values() for rule in rules} >= MOVABLE.keys() - {
        "near_duplicate_of_test_image"
    }


def test_a_pair_has_its_rules_its_steps_and_pairs_like_it(address: str, rows: list[dict[str, Any]]) -> None:
    asked = {"values": {"reason": ["pair_repeated"]}}
    row = ask(address, "/api/rows", {"filter": asked})["rows"][0]
    found = ask(address, f"/api/pair/{row['n']}")
    states = {(rule["stage"], rule["reason"]): rule["state"] for rule in found["rules"]}
    assert states["extract", "alt_empty"] == "passed"
    assert states["judge", "pair_repeated"] == "failed"
    assert states["fetch", "not_in_archive"] == "not asked"
    assert any("pair_repeated" in line for line in found["steps"])
    of_key = next(each for each in found["related"] if each["what"] == "same image and caption")
    assert of_key["pairs"] == sum(each["key"] == row["key"] for each in rows) - 1
    assert ask(address, "/api/count", {"filter": of_key["filter"]})["pairs"] == of_key["pairs"] + 1
    assert refused(address, "/api/pair/99999999")[0] == 400
    short = ask(address, "/api/rows", {"filter": {"values": {"reason": ["text_too_short"]}}})["rows"][0]
    rule = next(each for each in ask(address, f"/api/pair/{short['n']}")["rules"] if each["reason"] == "text_too_short")
    assert (rule["measured"], rule["setting"]) == (str(short["words"]), "text.words_at_least = 3")


def test_pictures_are_small_and_written_anew(address: str, run: Path) -> None:
    kept = ask(address, "/api/rows", {"filter": {"values": {"stage": ["kept"]}}})["rows"][0]
    data = fetched(address, f"/picture/{kept['n']}")
    with Image.open(io.BytesIO(data)) as picture:
        assert (picture.format, max(picture.size) <= 192) == ("WEBP", True)
    small = ask(address, "/api/rows", {"filter": {"values": {"reason": ["image_too_small"]}}})["rows"]
    assert any(row["has_picture"] for row in small)
    for row in small[:3]:
        if row["has_picture"]:
            assert fetched(address, f"/picture/{row['n']}")
    never = ask(address, "/api/rows", {"filter": {"values": {"reason": ["text_too_short"]}}})["rows"][0]
    assert not never["has_picture"]
    assert refused(address, f"/picture/{never['n']}")[0] == 404


def test_hostile_pictures_are_shown_as_pixels_alone_or_not(run: Path, tmp_path: Path) -> None:
    """What galleries keep is as it was found: vast, markup and no picture, or with markup as the name of a camera."""
    here = shutil.copytree(run, tmp_path / "run")
    samples = here / SAMPLES.path
    table = pq.read_table(samples)
    vast, marked, exif = io.BytesIO(), io.BytesIO(), Image.Exif()
    Image.new("1", (20_000, 20_000)).save(vast, "PNG")
    exif[0x010F] = "<script>alert(1)</script>"
    Image.new("RGB", (300, 200), "red").save(marked, "JPEG", exif=exif)
    hostile = [vast.getvalue(), b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>", marked.getvalue()]
    at = table.schema.get_field_index("picture")
    is_shown = pc.and_(pc.not_equal(table["reason"], KEPT), table["picture"].is_valid()).to_pylist()
    places = [place for place, shown in enumerate(is_shown) if shown][:3]
    pictures = table["picture"].to_pylist()
    for place, picture in zip(places, hostile, strict=True):
        pictures[place] = picture
    pq.write_table(table.set_column(at, table.schema.field(at), pa.array(pictures, pa.binary())), samples)
    with whole(here) as pairs:
        keys = table["key"].take(places).to_pylist()
        found = [Pictures(pairs).of(pairs.query(f"SELECT n FROM pairs WHERE key = '{key}'")[0][0]) for key in keys]
    assert found[:2] == [None, None]
    data = found[2] or b""
    assert [b"script" in each for each in (hostile[2], data)] == [True, False]
    with Image.open(io.BytesIO(data)) as shown:
        assert (shown.format, shown.size, dict(shown.getexif())) == ("WEBP", (192, 128), {})


def test_a_decision_is_commands_that_can_be_given(
    address: str, run: Path, tmp_path: Path, rows: list[dict[str, Any]]
) -> None:
    asked = {"ranges": {"words": [4, None]}, "values": {"stage": ["kept"]}}
    found = ask(address, "/api/decide", {"what": "select", "filter": asked})
    kept = [row for row in rows if row["reason"] == "kept" and row["words"] >= 4]
    assert (found["kept"], found["where"]) == (len(kept), "words >= 4")
    (tmp_path / "keys.txt").write_bytes(fetched(address, f"/keys?filter={urllib.parse.quote(json.dumps(asked))}"))
    for name, how in {"listed": ["--list", str(tmp_path / "keys.txt")], "where": ["--where", found["where"]]}.items():
        assert main(["select", str(run), str(tmp_path / name), *how]) == 0
        assert json.loads((tmp_path / name / "manifest.json").read_text())["pairs"] == len(kept)
    marked = [row["key"] for row in kept[:3]] + [row["key"] for row in rows if row["reason"] == "text_too_short"][:1]
    found = ask(address, "/api/decide", {"what": "remove", "keys": marked})
    assert (found["pairs"], found["kept"]) == (len(marked), 3)
    assert found["commands"] == [f"altalign remove {run} --keys keys.txt"]
    assert ask(address, "/api/decide", {"what": "remove", "keys": []})["pairs"] == 0


def test_a_filter_that_select_has_no_words_for_is_no_condition() -> None:
    facets = Facets({"extra.licence": "values"})
    columns = ["words", "source", "extra.licence"]
    assert of_select({"values": {"extra.licence": ["it's"]}}, facets, columns) == "\"extra.licence\" IN ('it''s')"
    for asked in ({"text": "a"}, {"values": {"reason": ["text_too_long"]}}, {"ranges": {"aspect": [1, 2]}}, {}):
        assert of_select(asked, facets, columns) == ""


@pytest.mark.parametrize(
    "asked",
    [
        [],
        {"values": {"nothing": ["a"]}},
        {"values": {"reason": "a"}},
        {"values": {"reason": [1]}},
        {"values": {"caption": ["\ud800"]}},
        {"values": {"words": ["x"]}},
        {"ranges": {"words": [1]}},
        {"ranges": {"words": ["1", None]}},
        {"ranges": {"host": [1, 2]}},
        {"text": 7},
        {"where": "true"},
    ],
)
def test_what_is_no_filter_is_one_line(address: str, asked: object) -> None:
    code, words = refused(address, "/api/count", {"filter": asked or ["a"]})
    assert code == 400
    assert words
    assert "\n" not in words


def test_other_origins_hosts_and_guesses_are_refused(address: str) -> None:
    base, _, token = address.partition("/?token=")
    for headers in ({"Origin": "http://evil.example"}, {"Host": "evil.example"}, {"Sec_Fetch_Site": "cross-site"}):
        assert refused(address, "/api/run", **headers)[0] == 403
    for path in ("/", "/api/run", "/picture/0", "/keys", "/api/rows"):
        assert refused(f"{base}/?token={token[:-1]}", path)[0] == 403
    connection = http.client.HTTPConnection(base.removeprefix("http://"))
    connection.request("GET", "/")
    assert connection.getresponse().status == 403
    connection.close()
    assert ask(address, "/api/run", Origin=base)["pairs"] > 0
    assert refused(address, "/api/count", "no object")[0] == 400


def test_the_page_loads_nothing_from_elsewhere(address: str) -> None:
    page = fetched(address, "/").decode()
    policy = page.partition('Content-Security-Policy" content="')[2].partition('"')[0]
    assert policy.startswith("default-src &#39;none&#39;; script-src &#39;sha256-")
    assert "img-src 'self' data:; connect-src 'self'" in policy
    assert "unsafe" not in policy


def test_the_run_does_not_change_and_a_run_that_changes_is_told(run: Path, tmp_path: Path) -> None:
    here = Path(shutil.copytree(run, tmp_path / "run"))
    before = tree(here)
    with serving(str(here)) as url:
        assert ask(url, "/api/rows", {})["rows"] is not None
        assert not ask(url, "/api/run")["has_changed"]
        assert tree(here) == before
        key = next(iter(pq.read_table(next((here / "shards").glob("*.parquet")))["key"].to_pylist()))
        (tmp_path / "keys").write_text(f"{key}\n")
        assert main(["remove", str(here), "--keys", str(tmp_path / "keys"), "--by", "me", "--because", "test"]) == 0
        assert ask(url, "/api/run")["has_changed"]


def test_a_run_that_cannot_be_browsed_is_one_line(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["browse", str(tmp_path / "none"), "--no-open"]) == 2
    assert main(["browse", str(run), "--port", "70000", "--no-open"]) == 2
    here = Path(shutil.copytree(run, tmp_path / "run"))
    (here / "manifest.json").unlink()
    assert main(["browse", str(here), "--no-open"]) == 2
    assert "not finished, so it cannot be browsed or searched yet" in capsys.readouterr().err


def test_a_damaged_file_is_named(run: Path, tmp_path: Path) -> None:
    here = Path(shutil.copytree(run, tmp_path / "run"))
    path = next(iter(sorted((here / "dropped" / "judge").glob("*.parquet"))))
    data = bytearray(path.read_bytes())
    data[4:400] = bytes(396)
    path.write_bytes(data)
    with serving(str(here)) as url:
        while not (about := ask(url, "/api/run"))["trouble"]:
            assert not about["is_read"]
    assert path.name in about["trouble"]


@pytest.mark.parametrize("store", ["s3", "gcs"])
def test_a_run_in_a_store_is_browsed_where_it_is(
    run: Path, store: str, address: str, request: pytest.FixtureRequest
) -> None:
    url = f"{cast(Server, request.getfixturevalue(store)).url}/browsed"
    for path in run.rglob("*"):
        if path.is_file() and path.relative_to(run).parts[0] not in ("work", "log"):
            with storage.write(f"{url}/{path.relative_to(run)}") as file:
                file.write(path.read_bytes())
    with serving(url) as there:
        while not ask(there, "/api/run")["is_read"]:
            pass
        first = ask(there, "/api/rows", {"count": 5})
        assert first == ask(address, "/api/rows", {"count": 5})
        kept = next(row for row in first["rows"] if row["stage"] == "kept")
        assert fetched(there, f"/picture/{kept['n']}") == fetched(address, f"/picture/{kept['n']}")


def test_the_command_serves_until_it_is_interrupted(run: Path) -> None:
    line = [sys.executable, "-m", "altalign", "browse", str(run), "--no-open"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ()) as command:
        assert command.stdout is not None
        address = command.stdout.readline().strip()
        assert ask(address, "/api/run")["folder"] == str(run)
        os.kill(command.pid, signal.SIGINT)
        _, errors = command.communicate(timeout=60)
    assert (command.returncode, errors) == (0, "Ctrl-C ends it\n")


def test_a_taken_port_is_one_line(run: Path, address: str) -> None:
    port = int(address.partition("/?")[0].rpartition(":")[2])
    with pytest.raises(UsageError, match=f"--port {port}: "), serving(str(run), port):
        pass


def edited(run: Path, to: Path, **columns: list[Any]) -> tuple[Path, Path]:
    """A copy of a run with other values in the first rows of a file that judge dropped; and that file."""
    here = Path(shutil.copytree(run, to / "run"))
    path = min((here / "dropped" / "judge").glob("*.parquet"))
    table = pq.read_table(path)
    for name, values in columns.items():
        is_typed = isinstance(values[0], str) and table[name].type != pa.string()
        old = table[name].to_pylist()
        column = [str(each) for each in old] if is_typed else old
        new = pa.array(values + column[len(values) :], None if is_typed else table[name].type)
        table = table.set_column(table.column_names.index(name), name, new)
    pq.write_table(table, path)
    return here, path


@contextmanager
def whole(run: Path) -> Iterator[browse_pairs.Pairs]:
    """All pairs of a run, once they are read."""
    with browse_pairs.opened(RunFolder.open(str(run))) as pairs:
        while not (pairs.is_read or pairs.trouble):
            pass
        yield pairs


def test_hosts_captions_and_scores_are_found_as_they_are(run: Path, tmp_path: Path) -> None:
    urls = {
        "http://user:p@ss@UPPER.example:8080/a@b": "upper.example",
        "https://[2001:DB8::1]:443/a": "[2001:db8::1]",
        "http://plain.example?q=http://other.example": "plain.example",
    }
    here, _ = edited(run, tmp_path, image_url=[*urls], caption=["ΟΔΟΣ", "İstanbul"], nsfw_score=[0.7])
    with whole(here) as pairs:
        for url, host in urls.items():
            assert pairs.query(f"SELECT host FROM pairs WHERE image_url = '{url}'") == [(host,)]
        for text in ("ΟΔΟΣ", "İstanbul"):
            assert pairs.count({"text": text})["pairs"] == 1
        # the score has 32 bits, 0.69999999; the threshold is not rounded to them
        assert pairs.count({"ranges": {"nsfw_score": [0.7, None]}})["pairs"] == 0
        assert pairs.count({"ranges": {"nsfw_score": [0.69, 0.7]}})["pairs"] == 1


def test_a_score_may_have_the_name_of_a_column(run: Path, tmp_path: Path) -> None:
    here = Path(shutil.copytree(run, tmp_path / "run"))
    (tmp_path / "scores.toml").write_text(
        "".join(f'[[score]]\nname = "{name}"\nkind = "language"\n' for name in ("similarity", "host", "stage"))
    )
    assert main(["score", str(here), "--with", str(tmp_path / "scores.toml")]) == 0
    with whole(here) as pairs:
        assert not pairs.trouble
        assert pairs.count({"values": {"similarity_": ["en"]}})["pairs"] > 0
        assert pairs.count({"values": {"stage": ["kept"]}})["pairs"] > 0
        assert pairs.count({"ranges": {"similarity": [-1, 1]}, "values": {"stage": ["kept"]}})["pairs"] == 0


def test_a_value_of_another_kind_ends_the_reading_in_one_line(run: Path, tmp_path: Path) -> None:
    here, _ = edited(run, tmp_path, words=["many"])
    with whole(here) as pairs:
        assert "many" in pairs.trouble
        assert "\n" not in pairs.trouble


def test_a_file_that_is_cut_is_named(run: Path, tmp_path: Path) -> None:
    here, path = edited(run, tmp_path)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(UnreadableError, match=f"{path}: cannot be read"), whole(here):
        pass


def test_a_row_that_is_another_one_now_is_not_shown(run: Path, tmp_path: Path) -> None:
    here, path = edited(run, tmp_path, caption=["here it was"])
    with whole(here) as pairs:
        number = int(pairs.matching({"text": "here it was"})[0])
        assert pairs.in_file(number)["caption"] == "here it was"
        for rows in (pq.read_table(path)[1:], pq.read_table(path)[:0]):
            pq.write_table(rows, path)
            with pytest.raises(UsageError, match="it has changed since the page was opened"):
                pairs.in_file(number)


def test_what_is_asked_while_files_are_read_is_of_all_that_is_read(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browse_pairs, "FEW_ROWS", 1)
    opened = RunFolder.open(str(run))
    with run_rows.database() as connection:
        pairs = browse_pairs.Pairs(opened, connection)
        insert = pairs._insert

        def inserted(*given: Any) -> None:
            assert len(pairs.matching({})) == pairs.read
            drawn = pairs.facet({}, "words")
            assert sum(number for *_, number in drawn["bins"]) + drawn["missing"] == pairs.read
            insert(*given)

        monkeypatch.setattr(pairs, "_insert", inserted)
        pairs.fill()
        assert (pairs.trouble, pairs.is_read, len(pairs.matching({}))) == ("", True, pairs.total)


class WithOther:
    """A run with other settings."""

    def __init__(self, pairs: browse_pairs.Pairs, **changed: Any) -> None:
        self.facts, self.config = pairs.run.facts, pairs.run.config.model_copy(update=changed)


def test_sizes_of_shrunk_images_say_nothing_of_what_would_go(run: Path) -> None:
    with whole(run) as pairs:
        shards = pairs.run.config.shards.model_copy(update={"resize_short_side_px": 64})
        pairs.run = cast(RunFolder, WithOther(pairs, shards=shards))
        pairs.query("UPDATE pairs SET width = 64, height = 64 WHERE stage = 'kept'")
        found = what_if(pairs, {}, {"image.short_side_above_px": 120})
        assert found["goes"] == (0, 0)
        assert found["comes"]
        with pytest.raises(UsageError, match="what was kept was shrunk"):
            what_if(pairs, {}, {"image.short_side_above_px": 240})


def test_a_run_of_another_one_counts_what_comes_from_its_selection(run: Path) -> None:
    with whole(run) as pairs:
        pairs.query(
            "UPDATE pairs SET stage = 'select', failed = 'text_on_too_many_images', reason = failed, "
            "images_per_text = 11 WHERE n = (SELECT min(n) FROM pairs WHERE stage = 'judge')"
        )
        pairs.run.facts["stages"]["select"] = pairs.run.facts["stages"]["judge"]
        found = what_if(pairs, {}, {"text.images_per_text_at_most": 11})
        assert next(each["pairs"] for each in found["comes"] if each["stage"] == "select") == 1
        assert not found["command"]  # it cannot be curated anew


def test_a_failure_is_one_line(
    address: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object) -> None:
        raise KeyError("a\nb")

    monkeypatch.setattr(browse_pairs.Pairs, "count", fails)
    code, words = refused(address, "/api/count", {})
    assert (code, words) == (500, r"KeyError: 'a\nb'")
    assert refused(address, "/api/what-if", {"thresholds": [1]})[0] == 400
    assert refused(address, "/api/what-if", {"thresholds": {"text.words_at_least": 2.5}})[0] == 400
    assert capfd.readouterr().err == ""


def test_keys_to_remove_are_those_of_dropped_pairs_too(address: str, rows: list[dict[str, Any]]) -> None:
    keys = fetched(address, "/keys?what=remove&filter=%7B%7D").decode().split()
    assert sorted(keys) == sorted(row["key"] for row in rows if row["key"])


def test_at_port_80_the_host_has_no_port(address: str) -> None:
    answers = list[Any]()

    async def app(_scope: object, _receive: object, _send: object) -> None:
        answers.append("let in")

    async def send(answer: Any) -> None:
        answers.append(answer.get("status"))

    headers = [(b"host", b"127.0.0.1"), (b"origin", b"http://127.0.0.1")]
    scope = {"type": "http", "method": "GET", "path": "/", "query_string": b"token=t", "headers": headers}
    asyncio.run(Guard(app, "t", 80)(scope, cast(Any, None), send))
    assert answers == ["let in"]


def test_a_rule_after_the_one_that_dropped_a_pair_was_not_asked(run: Path) -> None:
    def states(pairs: browse_pairs.Pairs, **row: object) -> dict[tuple[str, str], str]:
        return {(rule["stage"], rule["reason"]): rule["state"] for rule in _rules(pairs, row)}

    with whole(run) as pairs:
        fetch = states(pairs, stage="fetch", reason="http_timeout", failed=[])
        assert fetch["fetch", "http_status"] == "passed"
        assert fetch["fetch", "http_timeout"] == "failed"
        assert fetch["fetch", "opt_out_x_robots_tag"] == "not asked"
        judge = states(pairs, stage="judge", reason="text_too_short", failed=["text_too_short"])
        assert judge["judge", "text_too_long"] == "passed"
        assert judge["judge", "pair_repeated"] == "not asked"
        pairs.run.facts["stages"]["select"] = pairs.run.facts["stages"]["judge"]
        select = states(pairs, stage="select", reason="score_below:clip", failed=["score_below:clip"])
        assert select["select", "score_below:clip"] == "failed"


def test_a_broken_record_is_explained_by_its_file(run: Path, tmp_path: Path) -> None:
    here, _ = edited(run, tmp_path, key=[None], image_url=[None], file=["some/a b.csv"], words=[9_999])
    with whole(here) as pairs:
        number = int(pairs.matching({"ranges": {"words": [9_999, None]}})[0])
        assert details(pairs, number)["command"] == f"altalign explain {here} --source-key 'some/a b.csv'"
