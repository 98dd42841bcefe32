"""The shard format: what is written is read back, by us, by tarfile and by GNU tar; the bytes depend on the samples
alone.
"""

import hashlib
import io
import json
import shutil
import subprocess
import tarfile
from pathlib import Path
from random import Random
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from altalign.data import extras
from altalign.data.key import sample_key
from altalign.data.schema import SAMPLE, SIDE_CAR
from altalign.data.shards import (
    EXTENSIONS,
    Sample,
    ShardWriter,
    extension,
    pair_range,
    read_pair,
    samples,
    write_sidecar,
)

TEXT = st.text(st.characters(codec="utf-8"), max_size=60)
JSON = st.recursive(st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), TEXT), st.lists, max_leaves=4)
COUNT = st.integers(0, 2**31 - 1)
STATEMENTS = st.fixed_dictionaries({"notation": TEXT, "value": TEXT, "where": TEXT, "when": st.none() | TEXT})
SAMPLES = st.tuples(
    st.binary(max_size=2000),
    st.fixed_dictionaries(
        {
            "key": st.binary(min_size=16, max_size=16).map(bytes.hex),
            "image_id": st.binary(min_size=16, max_size=16).map(bytes.hex),
            "image_url": st.one_of(st.none(), TEXT),
            "caption": TEXT,
            "page_url": st.one_of(st.none(), TEXT),
            "source": TEXT,
            "source_key": st.one_of(st.none(), TEXT),
            "extra": st.one_of(st.none(), st.dictionaries(TEXT, JSON, min_size=1).map(extras.encode)),
            "preferences": st.one_of(st.none(), st.lists(STATEMENTS, max_size=2)),
            "width": COUNT,
            "height": COUNT,
            "format": st.sampled_from(sorted(EXTENSIONS)),
            "bytes": st.integers(0, 2**63 - 1),
            "sha256": st.binary(min_size=32, max_size=32).map(bytes.hex),
            "found_sha256": st.binary(min_size=32, max_size=32).map(bytes.hex),
            "words": COUNT,
        }
    ),
)


def row(caption: str = "a red kite over the hill", image: bytes = b"bytes", **values: Any) -> dict[str, Any]:
    digest = hashlib.sha256(image).hexdigest()
    return {
        "key": sample_key("https://example.org/a.jpg", caption),
        "image_id": "0" * 32,
        "image_url": "https://example.org/a.jpg",
        "caption": caption,
        "page_url": None,
        "source": "warc",
        "source_key": None,
        "extra": None,
        "preferences": None,
        "width": 320,
        "height": 240,
        "format": "jpeg",
        "bytes": len(image),
        "sha256": digest,
        "found_sha256": digest,
        "words": 6,
        **values,
    }


def written(pairs: list[tuple[bytes, dict[str, Any]]]) -> tuple[bytes, list[dict[str, Any]], ShardWriter]:
    file = io.BytesIO()
    writer = ShardWriter(file)
    rows = [writer.write(image, each) for image, each in pairs]
    writer.end()
    return file.getvalue(), rows, writer


@given(st.lists(SAMPLES, max_size=6))
@settings(derandomize=True, deadline=None, max_examples=60)
def test_what_is_written_is_read_back(pairs: list[tuple[bytes, dict[str, Any]]]) -> None:
    data, rows, writer = written(pairs)
    expected = [Sample(image, each["caption"], found) for (image, each), found in zip(pairs, rows, strict=True)]
    assert list(samples(io.BytesIO(data))) == expected
    sidecar = io.BytesIO()
    write_sidecar(rows, sidecar, "00000.tar")
    table = pq.read_table(io.BytesIO(sidecar.getvalue()))
    assert table.schema.equals(SIDE_CAR)
    assert table.select(SAMPLE.names).to_pylist() == rows
    for (image, each), file in zip(pairs, table["image"].to_pylist(), strict=True):
        assert (file["uri"], file["content_type"]) == ("00000.tar", f"image/{each['format']}")
        assert data[file["offset"] :][: file["size"]] == image
        assert file["checksum"] == f"SHA-256:{each['sha256']}"
    assert (writer.rows, writer.bytes, writer.sha256) == (len(pairs), len(data), hashlib.sha256(data).hexdigest())


@given(st.lists(SAMPLES, max_size=4))
@settings(derandomize=True, deadline=None, max_examples=40)
def test_offsets_are_those_of_the_images_in_the_tar(pairs: list[tuple[bytes, dict[str, Any]]]) -> None:
    data, rows, _ = written(pairs)
    assert [data[each["tar_offset"] :][: each["tar_bytes"]] for each in rows] == [image for image, _ in pairs]
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        assert [member.offset_data for member in tar.getmembers()[::3]] == [each["tar_offset"] for each in rows]


@given(st.lists(SAMPLES, max_size=4))
@settings(derandomize=True, deadline=None, max_examples=40)
def test_one_read_has_an_image_and_its_caption(pairs: list[tuple[bytes, dict[str, Any]]]) -> None:
    data, rows, _ = written(pairs)
    for (image, _), found in zip(pairs, rows, strict=True):
        sizes = {"tar_bytes": found["tar_bytes"], "caption_bytes": len(found["caption"].encode())}
        offset, length = pair_range(found["tar_offset"], **sizes)
        assert read_pair(data[offset : offset + length], key=found["key"], **sizes) == (image, found["caption"])
        for other in (data[offset : offset + length - 1], data[offset + 512 : offset + 512 + length], b""):
            with pytest.raises(ValueError, match=found["key"]):
                read_pair(other, key=found["key"], **sizes)


@given(st.lists(SAMPLES, min_size=1, max_size=6).flatmap(st.permutations), st.randoms(use_true_random=False))
@settings(derandomize=True, deadline=None, max_examples=60)
def test_a_copied_sample_has_the_bytes_that_it_would_be_written_with(
    pairs: list[tuple[bytes, dict[str, Any]]], random: Random
) -> None:
    data, rows, _ = written(pairs)
    ends = [*(each["tar_offset"] - 512 for each in rows[1:]), len(data) - 1024]
    chosen = random.sample(range(len(pairs)), random.randint(1, len(pairs)))
    file = io.BytesIO()
    writer = ShardWriter(file)
    places = [
        writer.copy(data[rows[n]["tar_offset"] - 512 : ends[n]], rows[n]["key"], rows[n]["tar_offset"]) for n in chosen
    ]
    writer.end()
    expected, rows_there, plain = written([pairs[number] for number in chosen])
    assert file.getvalue() == expected
    assert places == [each["tar_offset"] for each in rows_there]
    assert (writer.rows, writer.bytes, writer.sha256) == (plain.rows, plain.bytes, plain.sha256)


def test_bytes_of_no_such_sample_are_not_copied() -> None:
    data, (first, second), _ = written([(b"x" * 900, row("one")), (b"y" * 900, row("two"))])
    members, writer = data[: second["tar_offset"] - 512], ShardWriter(io.BytesIO())
    for key, place in ((second["key"], first["tar_offset"]), (first["key"], second["tar_offset"])):
        with pytest.raises(ValueError, match=f"{key}: the tar does not have this sample"):
            writer.copy(members, key, place)
    assert (writer.rows, writer.bytes) == (0, 0)


def test_the_same_samples_give_the_same_bytes() -> None:
    pairs = [(bytes([number]) * 700, row(f"caption {number}")) for number in range(5)]
    assert written(pairs)[0] == written(pairs)[0]
    # order of the columns given does not matter
    shuffled = [(image, dict(reversed(each.items()))) for image, each in pairs]
    assert written(shuffled)[0] == written(pairs)[0]
    # raise RULES_VERSION with it
    assert (
        hashlib.sha256(written(pairs)[0]).hexdigest()
        == "36353927b545ad7ef1f8821355f34346ed3eac79086aa21a0c815edb26115c91"
    )


def test_members_and_headers_are_those_of_tarfile() -> None:
    caption = 'Ein Drache 🐉 über «Köln»\u2028\t"quoted"\\'
    pairs = [(b"x" * 1024, row(caption, format="png")), (b"", row("empty"))]
    data, rows, _ = written(pairs)
    again = io.BytesIO()
    with tarfile.open(fileobj=again, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for (image, each), found in zip(pairs, rows, strict=True):
            row_of_json = {**found, "page_url": "", "source_key": "", "extra": "", "preferences": ""}
            dumped = json.dumps(row_of_json, ensure_ascii=False, separators=(",", ":")).encode()
            for suffix, content in (
                (extension(each["format"]), image),
                ("txt", each["caption"].encode()),
                ("json", dumped),
            ):
                member = tarfile.TarInfo(f"{each['key']}.{suffix}")
                member.size, member.mtime = len(content), 315_532_800
                tar.addfile(member, io.BytesIO(content))
    assert again.getvalue().startswith(data)
    assert not again.getvalue()[len(data) :].strip(b"\0")  # tarfile fills up to 10,240 bytes
    assert list(next(samples(io.BytesIO(data))).row) == SAMPLE.names  # JSON keeps the order


@pytest.mark.skipif(shutil.which("tar") is None, reason="there is no tar on this machine")
def test_tar_lists_and_extracts_it_without_a_word(tmp_path: Path) -> None:
    pairs = [(bytes(range(256)) * 9, row("first")), (b"", row("seçond"))]
    data, rows, _ = written(pairs)
    (tmp_path / "shard.tar").write_bytes(data)
    (tmp_path / "out").mkdir()
    done = subprocess.run(["tar", "-xvf", "shard.tar", "-C", "out"], cwd=tmp_path, capture_output=True, check=True)
    told = (done.stdout + done.stderr).decode().split()  # bsdtar writes "x NAME" on stderr
    with tarfile.open(tmp_path / "shard.tar") as tar:
        names = tar.getnames()
    assert [name for name in told if name != "x"] == names
    assert names == [f"{each['key']}.{suffix}" for each in rows for suffix in ("jpg", "txt", "json")]
    assert (tmp_path / "out" / f"{rows[0]['key']}.jpg").read_bytes() == pairs[0][0]
    assert (tmp_path / "out" / f"{rows[1]['key']}.txt").read_text(encoding="utf-8") == "seçond"


def test_the_file_is_only_appended_to() -> None:
    class Pipe(io.RawIOBase):
        """Takes bytes and nothing else."""

        def __init__(self) -> None:
            self.data = b""

        def write(self, data: Any) -> int:
            self.data += bytes(data)
            return len(data)

    pipe = Pipe()
    writer = ShardWriter(pipe)  # type: ignore[arg-type]
    writer.write(b"image", row())
    writer.end()
    assert [sample.image for sample in samples(io.BytesIO(pipe.data))] == [b"image"]


def test_an_empty_url_or_name_is_none() -> None:
    data, rows, _ = written([(b"", row(image_url="", page_url="", source_key=""))])
    assert [rows[0][name] for name in ("image_url", "page_url", "source_key")] == [None] * 3
    assert next(samples(io.BytesIO(data))).row == rows[0]


def test_no_samples_make_an_empty_archive() -> None:
    data, _, writer = written([])
    assert data == b"\0" * 1024
    assert writer.rows == 0
    assert list(samples(io.BytesIO(data))) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"key": None},
        {"caption": None},
        {"format": "heic"},
        {"format": None},
        {"source": "\ud800"},
    ],
)
def test_what_is_no_sample_is_refused_and_nothing_is_written(wrong: dict[str, Any]) -> None:
    file = io.BytesIO()
    writer = ShardWriter(file)
    with pytest.raises(ValueError, match=r"\w"):
        writer.write(b"", row() | wrong)
    with pytest.raises(ValueError, match="width must not be null"):
        writer.write(b"", row(width=None))
    assert (file.getvalue(), writer.bytes, writer.rows) == (b"", 0, 0)


def test_an_image_of_8_gib_is_refused() -> None:
    class Huge(bytes):
        def __len__(self) -> int:
            return 8**11

    with pytest.raises(ValueError, match="8 GiB"):
        ShardWriter(io.BytesIO()).write(Huge(), row())


@pytest.mark.parametrize("keep", [100, 512, 700, 1024, 1536, 2048, 2500])
def test_a_cut_shard_is_refused(keep: int) -> None:
    data, _, _ = written([(b"x" * 900, row())])
    with pytest.raises(ValueError, match=r"tar|members"):
        list(samples(io.BytesIO(data[:keep])))


def test_samples_that_another_archiver_packed_are_read() -> None:
    data, _, _ = written([(b"x" * 900, row("one")), (b"", row("two"))])
    file = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(data)) as before, tarfile.open(fileobj=file, mode="w") as tar:
        for member in before:
            member.mtime, member.uname = 1_700_000_000, "somebody"
            tar.addfile(member, before.extractfile(member))
    assert list(samples(io.BytesIO(file.getvalue()))) == list(samples(io.BytesIO(data)))


@pytest.mark.parametrize("place", [3, 127, 150, 156, 300])
def test_a_damaged_header_is_refused(place: int) -> None:
    data = bytearray(written([(b"x" * 900, row("one"))])[0])
    data[place] ^= 1
    with pytest.raises(ValueError, match="not a whole tar: a header is damaged"):
        list(samples(io.BytesIO(data)))


def test_other_tars_are_refused() -> None:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name in ("a.jpg", "b.txt", "a.json"):
            tar.addfile(tarfile.TarInfo(name))
    with pytest.raises(ValueError, match="of one key"):
        list(samples(io.BytesIO(file.getvalue())))
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name, content in (("a.jpg", b""), ("a.txt", b""), ("a.json", b"{}")):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    with pytest.raises(ValueError, match="columns of a side-car"):
        list(samples(io.BytesIO(file.getvalue())))
    with pytest.raises(ValueError, match="tar"):
        list(samples(io.BytesIO(b"no tar at all" * 100)))


def test_extensions_are_those_of_readers() -> None:
    assert [extension(each) for each in ("jpeg", "png", "tiff")] == ["jpg", "png", "tiff"]
    with pytest.raises(ValueError, match="jpeg, png"):
        extension("jpg")
