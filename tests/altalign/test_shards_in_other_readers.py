"""webdataset, Hugging Face `datasets` and open_clip's data loader open a shard of ours without our code."""

import hashlib
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
import pytest
from PIL import Image

from altalign.data import extras
from altalign.data.key import image_id, sample_key
from altalign.data.shards import EXTENSIONS, OF_CAPTIONS, ShardWriter, write_sidecar
from tests.docs.blocks import ROOT, blocks
from tests.support.other_readers import loader_of_open_clip

GUIDE = ROOT / "docs" / "guides" / "read-the-shards.md"

CAPTIONS = [
    "a red kite over the hill",
    "Ein Drache 🐉 über «Köln»",
    'red, "quoted" and \\ back',
    "凧が丘の上を飛ぶ",
    "null",
    "123",
    "a b\u2028c",
    "the last one",
]


# Of the eight samples: none, integers before fractions, nulls first, other keys, other types, a list, an object.
EXTRAS: list[list[dict[str, Any] | None]] = [
    [{"id": number, "license": "CC0"} for number in range(8)],
    [None] * 8,
    [None] * 5 + [{"license": "CC0"}] * 3,
    [{"score": 5}] * 5 + [{"score": 5.5}] * 3,
    [{"score": 5.5 if number % 2 else 5} for number in range(8)],
    [{"score": None}] * 6 + [{"score": 0.5}] * 2,
    [{"title": "one"}] * 5 + [{"license": "CC0"}, {"title": {"en": "two"}}, {"title": ["three", 3]}],
]

SAID = [None, [], [{"notation": "x-robots-tag", "value": "nofollow", "where": "image header", "when": None}]]


def write_shard(
    path: Path, formats: list[str], kept: Sequence[dict[str, Any] | None] = EXTRAS[0]
) -> list[tuple[bytes, dict[str, Any]]]:
    """Eight samples with real images of the formats in turn; the first six without a page, as from a table, the rest
    with one.
    """
    pairs = []
    with path.open("wb") as file:
        writer = ShardWriter(file)
        for number, caption in enumerate(CAPTIONS):
            url = f"https://example.org/{number}.png?größe={number}"
            encoded = io.BytesIO()
            kind = formats[number % len(formats)]
            Image.fromarray(np.full((30, 40, 3), number * 30, np.uint8)).save(encoded, kind.upper())
            digest = hashlib.sha256(encoded.getvalue()).hexdigest()
            row = {
                "key": sample_key(url, caption),
                "image_id": image_id(url),
                "image_url": url,
                "caption": caption,
                "page_url": None if number < 6 else "https://example.org/",
                "source": "warc",
                "source_key": f"a.csv#{number}",
                "extra": kept[number] and extras.encode(kept[number]),
                "preferences": SAID[number % len(SAID)],
                "width": 40,
                "height": 30,
                "format": kind,
                "bytes": len(encoded.getvalue()),
                "sha256": digest,
                "found_sha256": digest,
                "words": 3,
            }
            pairs.append((encoded.getvalue(), writer.write(encoded.getvalue(), row)))
        writer.end()
    return pairs


def in_json(row: dict[str, Any]) -> dict[str, Any]:
    """The side-car's row as the tar's JSON has it."""
    said = None if row["preferences"] is None else json.dumps(row["preferences"], separators=(",", ":"))
    return {name: "" if value is None else value for name, value in {**row, "preferences": said}.items()}


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.parametrize("formats", [["jpeg"], sorted(EXTENSIONS)], ids=["portable", "as found"])
def test_webdataset_reads_every_sample(tmp_path: Path, formats: list[str]) -> None:
    webdataset = pytest.importorskip("webdataset", reason="webdataset is not installed: uv sync --group test")
    pairs = write_shard(tmp_path / "00000.tar", formats)
    found = list(webdataset.WebDataset(str(tmp_path / "00000.tar"), shardshuffle=False))
    for (image, row), sample in zip(pairs, found, strict=True):
        assert sample["__key__"] == row["key"]
        assert sample[EXTENSIONS[row["format"]]] == image
        assert sample["txt"].decode() == row["caption"]
    images = (
        webdataset.WebDataset(str(tmp_path / "00000.tar"), shardshuffle=False)
        .decode("pil")
        .to_tuple("jpg", "txt", "json")
    )
    if formats == ["jpeg"]:
        assert [(image.size, caption, row) for image, caption, row in images] == [
            ((40, 30), row["caption"], in_json(row)) for _, row in pairs
        ]


@pytest.mark.filterwarnings("ignore")  # of its dependencies, of any kind
@pytest.mark.parametrize("kept", EXTRAS, ids=str)
@pytest.mark.parametrize("reading", ["streamed", "copied"])
def test_hugging_face_datasets_reads_every_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reading: str, kept: list[dict[str, Any] | None]
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    datasets = pytest.importorskip("datasets", reason="Hugging Face datasets is not installed: uv sync --group readers")
    pairs = write_shard(tmp_path / "00000.tar", ["jpeg"], kept)
    rows = datasets.load_dataset(
        "webdataset",
        data_files={"train": str(tmp_path / "00000.tar")},
        split="train",
        streaming=reading == "streamed",
        cache_dir=str(tmp_path / "cache"),
    )
    found = list(rows)
    for (_, row), sample in zip(pairs, found, strict=True):
        assert sample["__key__"] == row["key"]
        assert sample["txt"] == row["caption"]
        assert sample["json"] == in_json(row)
        assert sample["jpg"].size == (40, 30)


@pytest.mark.filterwarnings("ignore")  # of its dependencies, of any kind
@pytest.mark.parametrize("reading", ["streamed", "copied"])
def test_hugging_face_datasets_reads_images_of_several_kinds_by_the_features_of_the_guide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reading: str
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    datasets = pytest.importorskip("datasets", reason="Hugging Face datasets is not installed: uv sync --group readers")
    pairs = write_shard(tmp_path / "00000.tar", sorted(EXTENSIONS), EXTRAS[-1])
    with (tmp_path / "00000.parquet").open("wb") as file:
        write_sidecar([row for _, row in pairs], file, "00000.tar")
    wanted: dict[str, Any] = {
        "data_files": {"train": str(tmp_path / "00000.tar")},
        "split": "train",
        "streaming": reading == "streamed",
        "cache_dir": str(tmp_path / "cache"),
    }
    with pytest.raises(ValueError, match="don't share the same prefix or the same types"):
        datasets.load_dataset("webdataset", **wanted)  # whose first samples say what all of them have
    (block,) = [each for each in blocks(GUIDE) if "features = " in each.text]
    left: dict[str, Any] = {}
    text = block.text.partition("rows = ")[0].replace("runs/demo/shards/", f"{tmp_path}/")
    exec(text, left)
    found = list(datasets.load_dataset("webdataset", features=left["features"], **wanted))
    for (_, row), sample in zip(pairs, found, strict=True):
        there = [name for name in EXTENSIONS.values() if sample[name] is not None]
        assert there == [EXTENSIONS[row["format"]]]
        assert sample[there[0]].size == (40, 30)
        assert (sample["txt"], sample["json"]) == (row["caption"], in_json(row))


@pytest.mark.parametrize("formats", [["jpeg"], sorted(EXTENSIONS)], ids=["portable", "as found"])
def test_arrow_finds_every_image_where_the_column_of_files_says(tmp_path: Path, formats: list[str]) -> None:
    pairs = write_shard(tmp_path / "00000.tar", formats)
    with (tmp_path / "00000.parquet").open("wb") as file:
        write_sidecar([row for _, row in pairs], file, "00000.tar")
    system = pa.fs.SubTreeFileSystem(str(tmp_path), pa.fs.LocalFileSystem())
    for (image, row), found in zip(
        pairs, pq.read_table("00000.parquet", filesystem=system)["image"].to_pylist(), strict=True
    ):
        with system.open_input_file(found["uri"]) as tar:
            data = tar.read_at(found["size"], found["offset"])
        algorithm, digest = found["checksum"].split(":")
        assert data == image
        assert (algorithm, digest) == ("SHA-256", hashlib.sha256(data).hexdigest())
        assert Image.open(io.BytesIO(data)).get_format_mimetype() == found["content_type"] == f"image/{row['format']}"


@pytest.mark.filterwarnings("ignore")  # of its dependencies, of any kind
def test_the_loader_of_open_clip_reads_every_sample(tmp_path: Path) -> None:
    reason = "open_clip_torch, which needs torch, is not installed: uv sync --group readers-torch"
    pytest.importorskip("torch", reason=reason)
    pytest.importorskip("open_clip_train.data", reason=reason)
    pairs = write_shard(tmp_path / "00000.tar", ["jpeg"])
    batches = list(loader_of_open_clip([str(tmp_path / "00000.tar")], batch_size=3))
    assert [text for _, texts in batches for text in texts] == [row["caption"] for _, row in pairs]
    assert sum(len(images) for images, _ in batches) == len(pairs)
    assert all(image.shape == (30, 40, 3) for images, _ in batches for image in images)


@pytest.mark.filterwarnings("ignore")  # of dependencies, of any kind
def test_samples_of_all_captions_are_read_with_the_first_one_and_a_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of webdataset the captions of KEY.json; of `datasets` the same types whatever the first samples have."""
    pairs = write_shard(tmp_path / "pairs.tar", ["jpeg"])
    groups = [pairs[:1], pairs[1:4], pairs[4:5], pairs[5:6], pairs[6:7], pairs[7:]]
    with (tmp_path / "00000.tar").open("wb") as file:
        writer = ShardWriter(file)
        for group in groups:
            writer.write_all(group[0][0], [row for _, row in group], [1 / len(group)] * len(group))
        writer.end()
    expected = [
        {"captions": [row["caption"] for _, row in group], "caption_keys": [row["key"] for _, row in group]}
        | {"caption_shares": [1 / len(group)] * len(group)}
        for group in groups
    ]

    def told(row: dict[str, Any]) -> dict[str, Any]:
        return {name: row[name] for name in OF_CAPTIONS}

    webdataset = pytest.importorskip("webdataset", reason="webdataset is not installed: uv sync --group test")
    found = list(webdataset.WebDataset(str(tmp_path / "00000.tar"), shardshuffle=False))
    assert [sample["txt"].decode() for sample in found] == [each["captions"][0] for each in expected]
    assert [told(json.loads(sample["json"])) for sample in found] == expected
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    datasets = pytest.importorskip("datasets", reason="Hugging Face datasets is not installed: uv sync --group readers")
    for streaming in (True, False):
        rows = datasets.load_dataset(
            "webdataset",
            data_files={"train": str(tmp_path / "00000.tar")},
            split="train",
            streaming=streaming,
            cache_dir=str(tmp_path / "cache"),
        )
        assert [told(sample["json"]) for sample in rows] == expected
