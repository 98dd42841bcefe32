"""Checks of a run: all hold of a whole one, and each kind of damage is found by the check that is there for it."""

import hashlib
import io
import json
import random
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from altalign.audit.checks import ABOUT, run_checks
from altalign.audit.run_folder import RunFolder
from altalign.data.key import sample_key
from altalign.data.reasons import REASONS, WORDS, DropReason, Stage
from altalign.data.schema import DROPPED
from altalign.data.shards import Sample
from altalign.filters import identity, words
from tests.support import finished_runs as runs
from tests.support.curations import flip
from tests.support.finished_runs import checks_of, failing

pytestmark = pytest.mark.runs


# A whole run ----------------------------------------------------------------------------------------------------------


@pytest.mark.everyday
def test_a_whole_run_passes_every_check_and_every_sample_is_asked(whole: Path) -> None:
    found = checks_of(whole)
    rows, shards = runs.rows_of(whole), runs.names(whole)
    assert {name: check.detail for name, check in found.items() if not check.passed} == {}
    assert list(found) == [
        str(name) for name in ABOUT if name not in (DropReason.URL_BLOCKED, "image_blocked", "removed")
    ]
    of_samples = {*WORDS, "members", "order", "image_bytes", "image_sizes", "stored_form", "image_id"}
    of_samples |= {"key", "image_url", "captions", "words"}
    assert {found[name].checked for name in found.keys() & of_samples} == {len(rows)}
    numbers = {"side_cars": len(shards), "tars": len(shards), "digests": 2 * len(shards)}
    assert {name: found[name].checked for name in numbers} == numbers
    assert found["text_too_long"].detail == f"{len(rows)} samples checked again"


def test_every_rule_of_text_and_pixels_that_a_run_can_be_asked_about_is_asked() -> None:
    rules = {*REASONS[Stage.JUDGE], *REASONS[Stage.IMAGE]} - {"image_nsfw"}
    assert rules <= set(ABOUT)


def test_a_run_that_leaves_nothing_passes(tmp_path: Path) -> None:
    assert failing(runs.curated(tmp_path, "--set", "text.words_at_least=20", rows=120, code=1)) == {}


def test_without_dropped_rows_they_are_not_asked_for(tmp_path: Path) -> None:
    found = checks_of(runs.curated(tmp_path, "--set", "audit.keep_dropped=false", rows=120))
    assert all(check.passed for check in found.values())
    assert not {"dropped_rows", "kept_or_dropped"} & found.keys()


def test_a_sample_of_shards_is_chosen_by_content_and_named(whole: Path, run: Path) -> None:
    found = checks_of(run, shards_at_most=2)
    entries = json.loads((run / "manifest.json").read_text())["shards"]
    chosen = sorted(entries, key=lambda entry: entry["sha256"])[:2]
    assert all(check.passed for check in found.values())
    assert found["text_too_long"].checked == sum(entry["rows"] for entry in chosen)
    assert found["text_too_long"].detail.endswith(f"in 2 of {len(entries)} shards, those with the smallest SHA-256")
    assert not {"dropped_rows", "kept_or_dropped"} & found.keys()
    other = next(entry["name"] for entry in entries if entry not in chosen)
    flip(run / "shards" / other, 700)
    assert failing(run, shards_at_most=2) == {}
    assert "image_bytes" in failing(run)
    flip(run / "shards" / chosen[0]["name"], 700)
    assert "image_bytes" in failing(run, shards_at_most=2)


# Rules: the run as it is, held against other limits -------------------------------------------------------------------


def _hashes_of(run: Path) -> words.Scan:
    return words.scan(pa.array([row["caption"] for row in runs.rows_of(run)], pa.string()))


def _share_a_text(run: Path) -> None:
    runs.edit_table(run, "over_shared_texts", lambda hashes: np.append(hashes, _hashes_of(run).texts[:1]))


def _forget_an_ngram(run: Path) -> None:
    runs.edit_table(run, "vocabulary", lambda hashes: hashes[hashes != _hashes_of(run).ngrams[0]])


def _caption_an_image(run: Path) -> None:
    url = next(row["image_url"] for row in runs.rows_of(run) if row["image_url"])
    runs.edit_table(
        run,
        "over_captioned_images",
        lambda hashes: np.append(hashes, identity.image_hash(pa.array([url], pa.string()))),
    )


def setting(name: str, value: str) -> Callable[[Path], None]:
    return lambda run: runs.set_in_config(run, name, value)


@pytest.mark.parametrize(
    ("rule", "change"),
    [
        ("text_too_short", setting("words_at_least", "4")),
        ("text_too_large", setting("bytes_at_most", "20")),
        ("text_too_long", setting("words_at_most", "4")),
        ("text_on_too_many_images", _share_a_text),
        ("text_has_rare_ngram", _forget_an_ngram),
        ("image_has_too_many_texts", _caption_an_image),
        ("image_too_many_pixels", setting("pixels_at_most", "100000")),
        ("image_too_small", setting("short_side_above_px", "230")),
        ("image_too_elongated", setting("aspect_ratio_below", "1.2")),
        ("image_blocked", runs.block_an_image),
        ("shard_sizes", setting("samples_per_shard", "19")),
        ("stored_form", setting("resize_short_side_px", "100")),
        ("stored_form", setting("portable", "false")),
    ],
)
def test_each_rule_is_asked_again_of_the_rows_themselves(run: Path, rule: str, change: Callable[[Path], None]) -> None:
    change(run)
    said = failing(run)
    assert {rule} <= said.keys() <= ({rule, "image_damaged"} if rule == "image_too_many_pixels" else {rule})
    assert "; `altalign curate` with --re" in said[rule] or "a file was changed" in said[rule]


# Damage ---------------------------------------------------------------------------------------------------------------


def shard(run: Path, ending: str = ".tar") -> Path:
    return run / "shards" / f"00001{ending}"


def test_a_flipped_byte_in_an_image(run: Path) -> None:
    row = pq.read_table(shard(run, ".parquet")).to_pylist()[3]
    flip(shard(run), row["tar_offset"] + row["tar_bytes"] - 30)
    said = failing(run)
    assert {"digests", "image_bytes"} <= said.keys() <= {"digests", "image_bytes", "image_damaged"}
    assert said["image_bytes"].startswith(
        f"shards/00001.tar: {row['key']}: its image has {row['bytes']:,} bytes of SHA-256 "
    )
    runs.seal(run)
    assert "digests" not in failing(run)


@pytest.mark.parametrize(("mode", "turned"), [("RGB", 6), ("RGB", 2), ("CMYK", 1), ("L", 1), ("RGB", 1)])
def test_a_jpeg_that_is_turned_or_neither_rgb_nor_gray(run: Path, mode: str, turned: int) -> None:
    exif, written = Image.Exif(), io.BytesIO()
    exif[0x0112] = turned

    def edited(found: list[Sample]) -> list[Sample]:
        image = Image.open(io.BytesIO(found[0].image)).convert(mode)
        image.save(written, "JPEG", exif=exif)
        digest = hashlib.sha256(written.getvalue()).hexdigest()
        size = {"width": image.width, "height": image.height, "bytes": len(written.getvalue()), "sha256": digest}
        return [replace(found[0], image=written.getvalue(), row={**found[0].row, **size}), *found[1:]]

    runs.edit_shard(run, "00001", edited)
    runs.seal(run)
    said = failing(run)
    if turned == 1 and mode != "CMYK":
        assert said == {}
    else:
        assert said.keys() == {"stored_form"}
        assert "jpeg that is turned, or neither RGB nor gray, [shards] portable = true" in said["stored_form"]


@pytest.mark.parametrize(("place", "name"), [(0, "tars"), (512 - 1, "tars"), (-1, "tars"), (-600, "tars")])
def test_a_flipped_byte_between_members(run: Path, place: int, name: str) -> None:
    flip(shard(run), place)
    assert {"digests", name} <= failing(run).keys()


def test_a_flipped_byte_in_a_caption(run: Path) -> None:
    row = pq.read_table(shard(run, ".parquet")).to_pylist()[0]
    flip(shard(run), shard(run).read_bytes().index(row["caption"].encode() + b"\0"))
    runs.seal(run)
    wrong = f"shards/00001.tar: {row['key']}: its .txt is not the caption of the side-car"
    assert failing(run) == {"members": f"{wrong}; `altalign curate` with --rerun write makes it anew"}


def test_a_sample_too_few_and_one_too_many(run: Path) -> None:
    rows = pq.read_table(shard(run, ".parquet"))
    names = rows["key"].to_pylist()
    pq.write_table(rows.slice(0, len(rows) - 1), shard(run, ".parquet"))
    assert f"shards/00001.tar: {names[-1]}." in failing(run)["members"]
    pq.write_table(pa.concat_tables([rows, rows.slice(0, 1)]), shard(run, ".parquet"))
    assert f"shards/00001.tar: {names[0]}: it is not in the tar" in failing(run)["members"]


@pytest.mark.parametrize("ending", [".tar", ".parquet"])
def test_a_file_that_is_cut(run: Path, ending: str) -> None:
    path = shard(run, ending)
    path.write_bytes(path.read_bytes()[:-700])
    assert {"digests", {".tar": "tars", ".parquet": "side_cars"}[ending]} <= failing(run).keys()


@pytest.mark.parametrize("ending", [".tar", ".parquet"])
def test_a_file_that_is_gone_and_one_too_many(run: Path, ending: str) -> None:
    shutil.move(shard(run, ending), run / "shards" / f"99999{ending}")
    found = checks_of(run)
    assert found[{".tar": "tars", ".parquet": "side_cars"}[ending]].passed is False
    assert f"shards/00001{ending}: it is not there" in found["files"].detail
    assert f"shards/99999{ending}: nothing lists it" in found["files"].detail


@pytest.mark.parametrize("name", ["README.md", "croissant.json"])
def test_an_edit_of_the_card(run: Path, name: str) -> None:
    (run / name).write_text((run / name).read_text() + "\n")
    assert f"{name}: its SHA-256 is " in checks_of(run)["files"].detail
    (run / name).unlink()
    assert f"{name}: it is not there" in checks_of(run)["files"].detail


def test_side_cars_without_a_column_or_with_nulls(run: Path) -> None:
    rows = pq.read_table(shard(run, ".parquet"))
    pq.write_table(rows.drop_columns(["words"]), shard(run, ".parquet"))
    pq.write_table(rows.set_column(3, "caption", pa.nulls(len(rows), pa.string())), run / "shards" / "00000.parquet")
    said = failing(run)["side_cars"]
    assert "shards/00000.parquet: not the columns and text of a side-car (20 rows have no caption)" in said
    assert "shards/00001.parquet: not the columns and text of a side-car" in said


@pytest.mark.parametrize("part", ["uri", "offset", "size", "content_type", "checksum"])
def test_a_file_that_the_other_columns_do_not_name(run: Path, part: str) -> None:
    path = shard(run, ".parquet")
    rows = pq.read_table(path)
    files = rows["image"].to_pylist()
    was = files[3][part]
    files[3][part] = was + 1 if isinstance(was, int) else was[:-1]
    place = rows.column_names.index("image")
    pq.write_table(rows.set_column(place, rows.field("image"), pa.array(files, rows.field("image").type)), path)
    runs.seal(run)
    assert failing(run).keys() == {"image_files"}
    said = failing(run)["image_files"]
    assert said.count(": row ") == 1
    assert f"shards/{path.name}: row 3: image is {files[3]}, and the other columns say" in said


def test_swapped_rows_of_a_side_car(run: Path) -> None:
    rows = pq.read_table(shard(run, ".parquet"))
    pq.write_table(rows.take([1, 0, *range(2, len(rows))]), shard(run, ".parquet"), compression="zstd")
    runs.seal(run)
    assert {"order", "members"} <= failing(run).keys()


def test_swapped_shards(run: Path) -> None:
    for ending in (".tar", ".parquet"):
        one, two = run / "shards" / f"00000{ending}", run / "shards" / f"00001{ending}"
        held = one.read_bytes()
        one.write_bytes(two.read_bytes())
        two.write_bytes(held)
    runs.seal(run)
    assert "order" in failing(run)


def _with_30_words(found: list[Sample]) -> list[Sample]:
    """A sample in the middle with a caption of 30 words; its key and words are what they would be."""
    wordy = found[8]
    caption = " ".join((wordy.caption.split() * 30)[:30])
    key = sample_key(wordy.row["image_url"] or wordy.row["found_sha256"], caption)
    changed = Sample(wordy.image, caption, {**wordy.row, "caption": caption, "key": key, "words": 30})
    return sorted([*found[:8], changed, *found[9:]], key=lambda sample: (sample.row["image_id"], sample.key))


@pytest.mark.parametrize(
    ("edit", "failed_checks", "more"),
    [
        (lambda found: [found[1], found[0], *found[2:]], {"order"}, set()),
        (lambda found: [found[0], found[0], *found[2:]], {"pair_repeated"}, {"counts", "kept_or_dropped"}),
        (_with_30_words, {"text_too_long"}, {"text_has_rare_ngram"}),
    ],
    ids=["swapped", "twice", "wordy"],
)
def test_samples_that_are_others(
    run: Path, edit: Callable[[list[Sample]], list[Sample]], failed_checks: set[str], more: set[str]
) -> None:
    runs.edit_shard(run, "00001", edit)
    runs.seal(run)
    said = failing(run)
    assert failed_checks <= said.keys() <= failed_checks | more
    if edit is _with_30_words:
        assert "text.words_at_most = 20; a file was changed" in said["text_too_long"]


@pytest.mark.parametrize(
    ("column", "value", "failed_check"),
    [
        ("words", 3, "words"),
        ("caption", "a  red cat", "captions"),
        ("caption", "", "text_empty"),
        ("image_url", "https://img.example/#top", "image_url"),
        ("image_url", "https://elsewhere.example/", "image_id"),
        ("image_id", "0" * 32, "image_id"),
        ("key", "f" * 32, "key"),
        ("source", "nowhere", "source"),
        ("width", 7, "image_sizes"),
        ("found_sha256", "no digest", "image_id"),
        ("sha256", "é", "image_bytes"),
    ],
)
def test_a_value_that_is_another(run: Path, column: str, value: Any, failed_check: str) -> None:
    def is_meant(row: Mapping[str, Any]) -> bool:
        return (row["image_url"] is None) == (column == "found_sha256") and row["words"] > 3

    name = next(shard for shard in runs.names(run) if any(map(is_meant, runs.rows_of(run, shard))))

    def edit(found: list[Sample]) -> list[Sample]:
        place = next(number for number, sample in enumerate(found) if is_meant(sample.row))
        return [*found[:place], replace(found[place], row={**found[place].row, column: value}), *found[place + 1 :]]

    runs.edit_shard(run, name, edit)
    runs.seal(run)
    assert failed_check in failing(run)


# Counts ---------------------------------------------------------------------------------------------------------------


def test_edited_counts(run: Path) -> None:
    def edit(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{**row, "rows": row["rows"] + (row["reason"] == "text_too_short")} for row in rows]

    runs.edit_counts(run, edit)
    said = failing(run)
    assert said.keys() == {"counts", "dropped_rows"}
    assert said["counts"].startswith("counts.parquet: counts do not add up: extract kept ")
    assert "as text_too_short, but counts.parquet says " in said["dropped_rows"]


@pytest.mark.parametrize("changed", [{"rows": 0}, {"rows": -4}, {"rows": None}, {"reason": "bad_luck"}])
def test_counts_that_are_none(run: Path, changed: dict[str, Any]) -> None:
    runs.edit_counts(run, lambda found: [{**found[0], **changed}, *found[1:]])
    assert str(changed.get("reason", "")) in failing(run)["counts"]


@pytest.mark.parametrize("name", ["pairs", "images", "bytes", "stages", "near_duplicates"])
def test_an_edited_summary(run: Path, name: str) -> None:
    path = run / "summary.json"
    summary = json.loads(path.read_text())
    of = summary[name]
    summary[name] = of + 1 if isinstance(of, int) else of[1:] if isinstance(of, list) else {}
    path.write_text(json.dumps(summary))
    assert failing(run).keys() == {"counts"}


def test_dropped_rows_of_pairs_that_are_kept(run: Path) -> None:
    key = runs.rows_of(run)[5]["key"]
    row = {
        "key": key,
        "source": "pictures",
        "stage": "image",
        "reason": "image_too_small",
        "failed": ["image_too_small"],
    }
    pq.write_table(pa.Table.from_pylist([row], DROPPED), run / "dropped" / "image" / "more.parquet")
    said = failing(run)
    assert said.keys() == {"dropped_rows", "kept_or_dropped"}
    assert said["kept_or_dropped"].startswith(f"dropped/image/more.parquet: {key} is dropped, and is in a shard; ")


def test_dropped_rows_that_cannot_be_read(run: Path) -> None:
    path = sorted((run / "dropped" / "judge").iterdir())[0]
    path.write_bytes(path.read_bytes()[:-20])
    assert failing(run)["dropped_rows"].startswith(f"dropped/judge/{path.name}: cannot be read as Parquet (")


# The rest -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["manifest.json", "config.toml", "counts.parquet", "summary.json"])
@pytest.mark.parametrize("how", ["gone", "empty", "cut", "garbage"])
def test_a_file_of_the_run_that_is_not_as_it_was_written(run: Path, name: str, how: str) -> None:
    data = (run / name).read_bytes()
    (run / name).unlink()
    if how != "gone":
        (run / name).write_bytes({"empty": b"", "cut": data[: len(data) // 2], "garbage": b"\xff\0[{" * 40}[how])
    expected = {"manifest.json": "manifest", "config.toml": "settings"}.get(name, "counts")
    said = failing(run)
    assert expected in said
    assert name in said[expected]


ELSEWHERE = {"name": "../../x.tar", "rows": 1, "bytes": 1, "sha256": "", "parquet_sha256": ""}


@pytest.mark.parametrize("facts", [{"shards": [ELSEWHERE]}, {"shards": 3}, {"pairs": "many"}])
def test_a_manifest_of_other_things(run: Path, facts: dict[str, Any]) -> None:
    path = run / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **facts}))
    assert failing(run)["manifest"].startswith(
        "manifest.json: it lacks pairs, or shards (each with name, rows, bytes, sha256, parquet_sha256); "
    )


def test_a_run_of_other_rules_is_said_to_be_one(run: Path) -> None:
    path = run / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "rules_version": "1 (Unicode 3.0)"}))
    assert failing(run)["settings"].startswith(
        "manifest.json: rules_version = '1 (Unicode 3.0)', but this altalign checks by "
    )


@pytest.mark.parametrize("name", ["vocabulary", "over_shared_texts", "over_captioned_images"])
@pytest.mark.parametrize("ending", [".npy", ".json"])
def test_a_table_that_cannot_be_read(run: Path, name: str, ending: str) -> None:
    path = run / "tables" / f"{name}{ending}"
    path.write_bytes(path.read_bytes()[:40])
    rule = {
        "vocabulary": "text_has_rare_ngram",
        "over_shared_texts": "text_on_too_many_images",
        "over_captioned_images": "image_has_too_many_texts",
    }[name]
    assert failing(run).keys() == {rule}
    assert f"tables/{name}{ending}" in failing(run)[rule]


@pytest.mark.parametrize("seed", range(12))
def test_whatever_byte_of_a_shard_or_of_its_manifest_is_another_a_check_fails(run: Path, seed: int) -> None:
    rng = random.Random(seed)
    files = [
        *sorted((run / "shards").iterdir()),
        run / "config.toml",
        *sorted((run / "tables").iterdir()),
        run / "counts.parquet",
        run / "summary.json",
    ]
    path = rng.choice(files)
    data = bytearray(path.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(bytes(data))
    found = run_checks(RunFolder.open(str(run)))  # whatever it is, no error
    if path.parent.name == "shards" or path.name == "config.toml":
        assert not all(check.passed for check in found)
