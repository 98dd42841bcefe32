"""The mutator, and the checks themselves: they see what is wrong when something is."""

import io
import zlib
from random import Random

import pytest
from PIL import Image

from altalign.pipelines.read.stretches import Gatherer
from tests.fuzz import mutate, plain_tables
from tests.fuzz.targets import TARGETS
from tests.pipelines.read.pages import archives


def test_the_same_chance_gives_the_same_damage_and_most_damage_is_small():
    data = bytes(range(256)) * 8
    every = [mutate.mutate(data, Random(number), tokens=(b"TOKEN",), others=(b"other" * 50,)) for number in range(400)]
    assert every == [
        mutate.mutate(data, Random(number), tokens=(b"TOKEN",), others=(b"other" * 50,)) for number in range(400)
    ]
    assert len(set(every)) > 350
    assert any(b"TOKEN" in each for each in every)
    assert any(b"otherother" in each for each in every)
    kept = sorted(sum(mutate.common_ends(data, each)) / len(data) for each in every)
    assert kept[100] > 0.3
    assert max(map(len, every)) <= mutate.BYTES_AT_MOST


@pytest.mark.parametrize("change", mutate._CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("data", [b"", b"a", b"Content-Length: 17\r\n"])
def test_every_change_takes_any_bytes(change, data):
    assert any(change(data, Random(number), (b"t",), (b"", b"other")) != data for number in range(30)) or len(data) < 2


def test_checksums_and_lengths_are_mended():
    file = io.BytesIO()
    Image.new("L", (9, 9)).save(file, "PNG")
    sound = file.getvalue()
    damaged = sound[:20] + b"\x09" + sound[21:]  # of IHDR
    mended = mutate.with_png_checksums(damaged)
    assert mended[29:33] == zlib.crc32(mended[12:29]).to_bytes(4, "big")
    assert mutate.with_png_checksums(sound) == sound
    record = archives.page(1)
    assert mutate.with_content_length(record.replace(b"image", b"an image")) == archives.response(
        "http://a/1", b'<p><img src="1-0.png" alt="an image 0 of page 1">'
    )
    assert mutate.common_ends(b"abcdef", b"abXdef") == (2, 3)


@pytest.mark.parametrize(
    ("text", "rows", "broken"),
    [
        (b'u,c\n1,"a\nb"\n\n2,"x"y\n3,z\n4\n', [("1", "a\nb"), ("3", "z")], [13, 24]),
        (b'u,c\r\n1,a""b\r\n2,"a""b"\r\n3,\n', [("1", 'a""b'), ("2", 'a"b'), ("3", "")], []),
        (b'u,c\n1,"open\n2,two', [("2", "two")], [4]),
        (b"u,c\n1,\xff\n2,a\rb\n", [], [4, 8]),
    ],
)
def test_plain_loops_read_csv_as_it_is_defined(text, rows, broken):
    assert plain_tables.rows(text, "csv", ["u", "c"], 1 << 20) == (rows, broken)


@pytest.mark.parametrize("name", ["csv", "jsonl", "warc.gz", "wat"])
def test_a_reader_that_forgets_what_is_broken_is_found_out(tmp_path, monkeypatch, name):
    monkeypatch.setattr(Gatherer, "broken", lambda *_: None)
    target, path = TARGETS[name], tmp_path / f"input{TARGETS[name].suffix}"
    for number in range(60):
        original, mutated = target.make(Random(number))
        path.write_bytes(mutated)
        try:
            target.check(path, original)
        except AssertionError:
            return
    pytest.fail("nothing was noticed")
