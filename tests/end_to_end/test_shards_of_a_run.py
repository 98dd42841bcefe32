"""Every sample of a run, read again: members, offsets, digests and rules; by our reader, and by those of others."""

import contextlib
import hashlib
import io
import json
import random
import tarfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from altalign.audit.checks import run_checks
from altalign.audit.run_folder import RunFolder
from altalign.data import shards
from altalign.data.key import image_id, sample_key
from altalign.data.schema import RULES_VERSION, SAMPLE, SCHEMA_VERSION, SIDE_CAR
from tests.end_to_end.inputs import IMAGE_LIMITS, Part, Picture, picture_of, pictures, placed, write_parts
from tests.end_to_end.oracle import curate, read_sidecars
from tests.reference.captions import bigrams, clean, folded, words
from tests.reference.curation import Candidate, Settings, image_verdict, run, tables

SAMPLES_PER_SHARD = 9
SETTINGS = Settings(
    words_at_least=2,
    words_at_most=6,
    images_per_text_at_most=4,
    vocabulary_size=100,
    texts_per_image_at_most=9,
    blocked_hashes=pictures()["blocked"].facts.hashes,
    **IMAGE_LIMITS,
)


@dataclass(frozen=True)
class Finished:
    """A finished run, what it was made of, and how its shards were to be."""

    folder: Path
    candidates: list[Candidate]
    images: dict[str, Picture]
    portable: bool

    @property
    def tars(self) -> list[Path]:
        """In order of their names."""
        return sorted((self.folder / "shards").glob("*.tar"))

    def identity_of(self, row: dict[str, Any]) -> str:
        """The image identity of a row: its URL, or the digest of the bytes."""
        return row["image_url"] if row["image_url"] in self.images else row["found_sha256"]


def small_pool() -> list[Part]:
    """Pages, a table of images, a tar and a list of texts over one small set of images of every kind."""
    rng, names = random.Random(5), list(pictures())
    nouns = ["dog", "Katze", "maison", "дом", "a", "the", "red", "old", "l’été", "北", "boat", "near"]

    def caption() -> str | None:
        said = " ".join(rng.choice(nouns) for _ in range(rng.randrange(8)))
        return rng.choice([said, said, said, "a red boat", "the old dog &amp; the boat", None])

    def rows(n: int, *, is_in_hand: bool) -> list[Candidate]:
        found = []
        for _ in range(n):
            name = rng.choice(names)
            url = f"https://img.example/{names.index(name)}.jpg?größe={rng.randrange(3)}"
            url = rng.choice([url, url, url, None, "x.jpg"]) if is_in_hand else url
            page = rng.choice(["https://p.example/", "https://p.example/2"])
            found.append(
                Candidate(
                    url,
                    caption(),
                    page,
                    image_sha256=pictures()[name].sha256 if is_in_hand and rng.random() < 0.9 else None,
                )
            )
        return found

    plain = [
        Candidate(f"https://img.example/{n}.jpg", caption(), "https://p.example/")
        for n in range(len(names))
        for _ in range(3)
    ]
    archived = [(f"https://img.example/{n}.jpg", name) for n, name in enumerate(names)]
    table, tar, texts = rows(160, is_in_hand=True), rows(60, is_in_hand=True), rows(60, is_in_hand=False)
    return [
        Part("web", "warc.gz", plain, archived),
        Part("table", "images.parquet", table),
        Part("tar", "tar", tar),
        Part("table", "jsonl", texts),
    ]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Finished]:
    """The same pool twice, by whether the shards are portable."""
    made, parts = {}, small_pool()
    candidates, images = placed(parts)
    for is_portable in (True, False):
        folder = tmp_path_factory.mktemp("run")
        at = curate(
            folder,
            write_parts(folder, parts),
            SETTINGS,
            shards={"samples_per_shard": SAMPLES_PER_SHARD, "portable": is_portable},
        )
        made[is_portable] = Finished(at, candidates, images, is_portable)
    return made


@pytest.fixture(params=[True, False], ids=["portable", "as found"])
def finished(request: pytest.FixtureRequest, runs: dict[bool, Finished]) -> Finished:
    return runs[request.param]


@pytest.fixture
def portable(runs: dict[bool, Finished]) -> Finished:
    return runs[True]


def test_members_are_an_image_its_caption_and_its_row_in_the_order_of_the_side_car(finished: Finished):
    for path in finished.tars:
        rows = pq.read_table(path.with_suffix(".parquet")).to_pylist()
        assert pq.read_schema(path.with_suffix(".parquet")) == SIDE_CAR
        with tarfile.open(path) as tar:
            members = {member.name: (member, tar.extractfile(member)) for member in tar}
            for row, names in zip(rows, zip(*[iter(members)] * 3, strict=True), strict=True):
                assert names == (
                    f"{row['key']}.{shards.EXTENSIONS[row['format']]}",
                    f"{row['key']}.txt",
                    f"{row['key']}.json",
                )
                image, caption, written = (
                    file.read() if file else b"" for _, file in (members[name] for name in names)
                )
                assert (members[names[0]][0].offset_data, members[names[0]][0].size) == (
                    row["tar_offset"],
                    row["tar_bytes"],
                )
                assert caption.decode() == row["caption"]
                of_json = json.loads(written)
                of_json["preferences"] = json.loads(of_json["preferences"])
                # the side-car alone has `image`, by which whoever knows Parquet's type FILE finds it in the tar
                file = row.pop("image")
                assert file["uri"] == path.name
                assert path.read_bytes()[file["offset"] :][: file["size"]] == image
                assert file["checksum"] == f"SHA-256:{hashlib.sha256(image).hexdigest()}"
                assert of_json == {name: "" if value is None else value for name, value in row.items()}
                assert hashlib.sha256(image).hexdigest() == row["sha256"]
                assert len(image) == row["bytes"]


def test_our_reader_finds_every_sample_in_order_and_at_its_offset(finished: Finished):
    for path in finished.tars:
        rows = pq.read_table(path.with_suffix(".parquet"), columns=SAMPLE.names).to_pylist()
        with path.open("rb") as tar:
            found = list(shards.samples(tar))
        data = path.read_bytes()
        assert [sample.row for sample in found] == rows
        assert [sample.image for sample in found] == [data[row["tar_offset"] :][: row["tar_bytes"]] for row in rows]


def test_stored_images_are_the_bytes_found_or_what_they_show_as_jpeg(finished: Finished):
    formats = set()
    for path in finished.tars:
        with path.open("rb") as tar:
            for sample in shards.samples(tar):
                picture = finished.images[finished.identity_of(sample.row)]
                assert picture_of(sample.row["found_sha256"]) == picture
                formats.add(sample.row["format"])
                facts = picture.facts
                is_upright = picture.upright == (facts.width, facts.height)
                if not finished.portable or (facts.format == "jpeg" and is_upright):
                    assert sample.image == picture.bytes
                    assert (sample.row["width"], sample.row["height"], sample.row["format"]) == (
                        picture.facts.width,
                        picture.facts.height,
                        picture.facts.format,
                    )
                else:
                    assert (sample.row["width"], sample.row["height"], sample.row["format"]) == (
                        *picture.upright,
                        "jpeg",
                    )
                with Image.open(io.BytesIO(sample.image)) as image:
                    assert image.format == {"jpeg": "JPEG"}.get(sample.row["format"], sample.row["format"].upper())
                    assert image.size == (sample.row["width"], sample.row["height"])
                    assert np.abs(np.asarray(image.convert("RGB")).astype(int) - picture.colour).max() <= 12
    assert formats == ({"jpeg"} if finished.portable else {"jpeg", "png", "webp", "gif", "bmp", "tiff", "avif"})


def test_shards_are_full_but_the_last_and_the_manifest_names_what_is_there(finished: Finished):
    manifest = json.loads((finished.folder / "manifest.json").read_text(encoding="utf-8"))
    rows = [pq.read_metadata(path.with_suffix(".parquet")).num_rows for path in finished.tars]
    listed = finished.folder / "files.jsonl"
    assert len(manifest.pop("seal")) == 64
    assert len(rows) > 3
    assert rows[:-1] == [SAMPLES_PER_SHARD] * (len(rows) - 1)
    assert 0 < rows[-1] <= SAMPLES_PER_SHARD
    assert [path.name for path in finished.tars] == [f"{number:05d}.tar" for number in range(len(rows))]
    assert manifest == {
        "shards": [
            {
                "name": path.name,
                "rows": n,
                "bytes": path.stat().st_size,
                "sha256": _sha256(path),
                "parquet_sha256": _sha256(path.with_suffix(".parquet")),
            }
            for path, n in zip(finished.tars, rows, strict=True)
        ],
        "pairs": sum(rows),
        "schema_version": SCHEMA_VERSION,
        "rules_version": RULES_VERSION,
        "settings_sha256": _sha256(finished.folder / "config.toml"),
        "files": {"name": listed.name, "bytes": listed.stat().st_size, "sha256": _sha256(listed)},
        "card": {name: _sha256(finished.folder / name) for name in ("README.md", "croissant.json")},
    }
    assert len(list((finished.folder / "shards").iterdir())) == 2 * len(rows)


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_every_kept_row_passes_every_rule_and_all_that_pass_are_kept(finished: Finished):
    rows = read_sidecars(finished.folder)
    facts = tables(finished.candidates, SETTINGS)
    assert facts.vocabulary is not None
    for row in rows:
        identity, found = finished.identity_of(row), words(row["caption"])
        assert (row["image_id"], row["key"]) == (image_id(identity), sample_key(identity, row["caption"]))
        assert row["caption"] == clean(row["caption"]) != ""
        assert row["words"] == len(found)
        assert SETTINGS.words_at_least <= len(found) <= SETTINGS.words_at_most
        assert facts.images_per_text[folded(row["caption"])] <= SETTINGS.images_per_text_at_most
        assert facts.texts_per_image[identity] <= SETTINGS.texts_per_image_at_most
        assert facts.vocabulary.keys() >= {*found, *bigrams(found)}
        assert image_verdict(finished.images[identity].facts, SETTINGS) == []
    order = [(row["image_id"], row["key"]) for row in rows]
    assert order == sorted(set(order))
    curation = run(
        finished.candidates, {identity: picture.facts for identity, picture in finished.images.items()}, SETTINGS
    )
    assert [row["key"] for row in rows] == [outcome.key for outcome in curation.kept]


def test_rows_in_dropped_are_as_many_as_counts_say(finished: Finished):
    """By duckdb, over all files of dropped/ at once."""
    counted = {
        (row["stage"], row["source"], row["reason"]): row["rows"]
        for row in pq.read_table(finished.folder / "counts.parquet").to_pylist()
    }
    with duckdb.connect(config={"threads": 1}) as sql:
        query = "select stage, source, reason, count(*) from read_parquet(?) group by all"
        found = Counter(
            {
                tuple(row[:3]): row[3]
                for row in sql.execute(query, [str(finished.folder / "dropped" / "*" / "*.parquet")]).fetchall()
            }
        )
    assert found == {name: rows for name, rows in counted.items() if name[2] != "kept"}
    assert sum(rows for (stage, _, _), rows in counted.items() if stage == "extract") == len(finished.candidates)


def test_the_checks_of_the_audit_find_nothing_wrong(finished: Finished):
    with contextlib.chdir(finished.folder.parent):  # where the block list is
        checks = run_checks(RunFolder.open(str(finished.folder)))
    assert [check for check in checks if not check.passed] == []
    assert {check.checked for check in checks if check.name in ("text_too_long", "image_blocked", "members")} == {
        len(read_sidecars(finished.folder))
    }


# Other readers --------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
def test_webdataset_reads_the_run(portable: Finished):
    webdataset = pytest.importorskip("webdataset", reason="webdataset is not installed: uv sync --group test")
    paths = [str(path) for path in portable.tars]
    found = list(webdataset.WebDataset(paths, shardshuffle=False).decode("pil").to_tuple("__key__", "jpg", "txt"))
    rows = read_sidecars(portable.folder)
    assert [(key, image.size, caption) for key, image, caption in found] == [
        (row["key"], (row["width"], row["height"]), row["caption"]) for row in rows
    ]


@pytest.mark.filterwarnings("ignore")  # of its dependencies, of any kind
def test_hugging_face_datasets_reads_the_run(portable: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    datasets = pytest.importorskip("datasets", reason="Hugging Face datasets is not installed: uv sync --group readers")
    files = {"train": [str(path) for path in portable.tars]}
    found = datasets.load_dataset(
        "webdataset", data_files=files, split="train", streaming=True, cache_dir=str(tmp_path)
    )
    rows = read_sidecars(portable.folder)
    assert [(sample["__key__"], sample["txt"], sample["jpg"].size) for sample in found] == [
        (row["key"], row["caption"], (row["width"], row["height"])) for row in rows
    ]


@pytest.mark.filterwarnings("ignore")  # of its dependencies, of any kind
def test_the_loader_of_open_clip_reads_the_run(portable: Finished):
    reason = "open_clip_torch, which needs torch, is not installed: uv sync --group readers-torch"
    pytest.importorskip("torch", reason=reason)
    data = pytest.importorskip("open_clip_train.data", reason=reason)
    rows = read_sidecars(portable.folder)
    files = "::".join(str(path) for path in portable.tars)

    def nothing(_: Image.Image) -> np.ndarray:
        return np.zeros(1)

    options = {"train_data": None, "train_data_upsampling_factors": None, "workers": 0, "world_size": 1, "seed": 0}
    settings = SimpleNamespace(**options, val_data=files, val_num_samples=len(rows), batch_size=4)
    loader = data.get_wds_dataset(settings, nothing, is_train=False, tokenizer=lambda text: [text]).dataloader
    assert [text for _, texts in loader for text in texts] == [row["caption"] for row in rows]
