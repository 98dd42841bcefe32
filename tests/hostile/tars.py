"""WebDataset tars with members that are no files, headers that lie, and samples that are none."""

import tarfile
from collections.abc import Callable
from functools import partial

from tests.hostile.cases import BROKEN, Case, after, before
from tests.hostile.files import (
    MARK,
    between,
    gzip_bomb,
    gzipped,
    header,
    member,
    patched,
    pax,
    pax_record,
    picture,
    sample,
    tar,
)
from tests.pipelines.read.pages.archives import zstd

CAPTION = "a picture in a tar"
IMAGE = picture(90) + MARK  # which decoders do not look at
NO_SAMPLE = "no image, .txt or .json of one name before the first dot, but …"
_case = partial(between, tar)


def _file(name: str, about: str, build: Callable[[], bytes], error: str, suffix: str = ".tar") -> Case:
    """A case that is a file which cannot be read."""
    return Case(name, about, "webdataset", suffix, build, exit_code=1, error=error)


def good(stem: str = "it", image: bytes | None = None) -> bytes:
    """A sample without a URL."""
    return member(f"{stem}.png", IMAGE if image is None else image) + member(f"{stem}.txt", CAPTION.encode())


def text(content: bytes, stem: str = "it") -> bytes:
    """A sample of an image and this text."""
    return member(f"{stem}.png", IMAGE) + member(f"{stem}.txt", content)


def side_car(content: bytes) -> bytes:
    """A sample of an image, a text and this JSON."""
    return good() + member("it.json", content)


def _link(kind: bytes, target: str) -> bytes:
    return header("it.png", 0, type=kind, linkname=target) + member("it.txt", CAPTION.encode())


def _sparse(kind: str, declared: int) -> bytes:
    """A sparse member: of GNU's old form, or of one of those in pax headers."""
    data = IMAGE
    match kind:
        case "old":
            block = header("it.png", len(data), type=tarfile.GNUTYPE_SPARSE)
            block = patched(block, 386, b"%011o\0%011o\0" % (0, len(data)) + b"\0" * 72 + b"\0" + _number(declared))
            return block + data + b"\0" * (-len(data) % 512)
        case "0.1":
            records = [
                pax_record("GNU.sparse.map", f"0,{len(data)}"),
                pax_record("GNU.sparse.size", str(declared)),
                pax_record("GNU.sparse.name", "it.png"),
            ]
            return pax(*records) + member("it.png", data)
        case _:
            records = [
                pax_record("GNU.sparse.major", "1"),
                pax_record("GNU.sparse.minor", "0"),
                pax_record("GNU.sparse.realsize", str(declared)),
            ]
            return pax(*records) + member("it.png", (b"1\n0\n%d\n" % len(data)).ljust(512, b"\0") + data)


def _number(value: int) -> bytes:
    """A number as GNU writes it where eleven octal digits are too few; negative ones too."""
    return (
        b"%011o\0" % value
        if 0 <= value < 8**11
        else (b"\x80" if value >= 0 else b"\xff") + value.to_bytes(11, "big", signed=value < 0)
    )


def _sized(size: int) -> bytes:
    """A member whose header says that it has so many bytes."""
    return patched(header("it.png", 0), 124, _number(size)) + IMAGE


_MEMBERS = [
    _case(
        "tar-in-a-tar",
        "A tar as a member: it is not unpacked",
        lambda: member("inner.tar", tar("tar-in-a-tar")),
        dropped=BROKEN,
        error=NO_SAMPLE,
    ),
    _case("tar-in-tars", "A tar inside 30 tars", lambda: _nested(30), dropped=BROKEN, error=NO_SAMPLE),
    _case(
        "tar-of-gzip",
        "An image and a text, each compressed",
        lambda: member("it.png.gz", gzipped(picture())) + member("it.txt.gz", gzipped(b"a text")),
        dropped=BROKEN,
        error=NO_SAMPLE,
    ),
    _case(
        "symbolic-link",
        "An image that is a symbolic link to `/etc/passwd`: it is not followed",
        _link(tarfile.SYMTYPE, "/etc/passwd"),
        dropped={"url_invalid": 1},
    ),
    _case(
        "hard-link",
        "An image that is a hard link to another member",
        _link(tarfile.LNKTYPE, "before.png"),
        dropped={"url_invalid": 1},
    ),
    _case("link-to-itself", "A symbolic link to itself", _link(tarfile.SYMTYPE, "it.png"), dropped={"url_invalid": 1}),
    _case(
        "devices",
        "A character device, a block device and a pipe",
        b"".join(
            header(f"{kind.decode()}.png", 0, type=kind, devmajor=1, devminor=5)
            for kind in (tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE)
        ),
    ),
    _case(
        "folder-called-an-image",
        "A folder called `it.png`",
        header("it.png", 0, type=tarfile.DIRTYPE) + member("it.txt", CAPTION.encode()),
        dropped={"url_invalid": 1},
    ),
    _case("name-absolute", "`/etc/it.png`: a name, and no place", lambda: good("/etc/it"), CAPTION),
    _case("name-upwards", "`../../it.png`", lambda: good("../../it"), CAPTION),
    _case(
        "name-with-line-breaks",
        "A name with a line break, a bell and an escape sequence in it",
        lambda: member("it\n\x07\x1b[2J.zip", b"zip"),
        dropped=BROKEN,
        error=NO_SAMPLE,
    ),
    _case(
        "name-no-utf-8",
        "A name that is no UTF-8",
        lambda: member("it\udcff.png", IMAGE) + member("it\udcff.txt", CAPTION.encode()),
        CAPTION,
    ),
    _case(
        "name-of-nothing",
        "Members without a name",
        lambda: member("", IMAGE) + member(".", b"x"),
        dropped=BROKEN,
        error=NO_SAMPLE,
    ),
    _case(
        "name-of-dots",
        "`.png`, which is an extension and no name",
        lambda: member(".png", IMAGE) + member(".txt", CAPTION.encode()),
        CAPTION,
    ),
    _case("name-of-10-kb", "A name of 10 kB", lambda: good("n" * 10_000), CAPTION),
    _case(
        "name-twice-in-a-sample",
        "Two `.txt` of one sample",
        lambda: good() + member("it.txt", b"another text of it"),
        dropped=BROKEN,
        error="it.txt: a second .txt of one sample; two samples may not have one name",
    ),
    _case(
        "name-twice-apart",
        "Two samples of one name, another between them: both are samples",
        lambda: good() + good("other", picture(80) + MARK) + text(b"the second of one name"),
        CAPTION,
        CAPTION,
        "the second of one name",
    ),
    _case(
        "names-of-a-mac",
        "`._it.png`, which macOS adds",
        lambda: member("._it.png", b"\0\5\x16\7") + good(),
        CAPTION,
        dropped=BROKEN,
        error="files of attributes, as macOS adds them: 1 left out, such as ._it.png",
    ),
    _case(
        "samples-without-images",
        "Texts without images",
        lambda: member("a.txt", b"a text alone") + member("b.json", b"{}"),
        dropped={"url_invalid": 2},
    ),
    _case(
        "sample-of-two-images",
        "A `.jpg` and a `.png` of one sample: the first counts",
        lambda: member("it.png", IMAGE) + member("it.jpg", b"no image") + member("it.txt", CAPTION.encode()),
        CAPTION,
    ),
    _case("sample-without-text", "Images without a text", lambda: member("it.png", IMAGE), dropped={"text_empty": 1}),
    _case(
        "members-a-thousand-folders",
        "1,000 empty folders",
        lambda: b"".join(header(f"{number}/", 0, type=tarfile.DIRTYPE) for number in range(1_000)),
    ),
    _case(
        "tar-with-junk-behind-it",
        "Junk behind the zeros that end a tar",
        lambda: b"",
        dropped=BROKEN,
        error="behind the end of the tar is something else (…)",
        pack=lambda data: data + b"junk" * 200,
    ),
    _case(
        "tar-appended",
        "A tar appended to a tar: zeros end the first, and the second counts too",
        lambda: b"\0" * 1024 + good(),
        CAPTION,
    ),
]

_CONTENTS = [
    _case("text-with-nul", "NUL in a text", text(b"a text\0with nothing in it"), "a textwith nothing in it"),
    _case(
        "text-no-utf-8",
        "A text that is no UTF-8",
        text(b"caf\xe9 at the corner"),
        dropped=BROKEN,
        error="it.txt: not UTF-8 (byte 3)",
    ),
    _case(
        "text-of-utf-16",
        "A text in UTF-16",
        text("a text here".encode("utf-16")),
        dropped=BROKEN,
        error="it.txt: not UTF-8 (byte 0)",
    ),
    _case("text-of-5-mb", "A text of 5 MB", lambda: text(b"word " * 1_000_000), dropped={"text_too_large": 1}),
    _case(
        "text-of-17-mb",
        "A text of 17 MiB",
        lambda: text(b"a" * (17 << 20)),
        dropped=BROKEN,
        error="it.txt: longer than 16 MiB",
    ),
    _case(
        "side-car-nested",
        "JSON nested 100,000 times",
        lambda: side_car(b"[" * 100_000 + b"]" * 100_000),
        dropped=BROKEN,
        error="it.json: no JSON: nested too deeply",
    ),
    _case(
        "side-car-of-types",
        "A URL that is a list",
        side_car(b'{"url": []}'),
        dropped=BROKEN,
        error="it.json: url is no string but list",
    ),
    _case(
        "side-car-of-half-characters",
        "Half a surrogate pair in a URL: the image is in hand",
        side_car(b'{"url": "http://a/\\ud800"}'),
        CAPTION,
    ),
    _case(
        "side-car-of-a-huge-number",
        "A number of 100,000 digits",
        lambda: side_car(b'{"n": ' + b"9" * 100_000 + b"}"),
        dropped=BROKEN,
        error="it.json: no JSON: a number of too many digits",
    ),
    _case(
        "image-cut-in-a-tar", "An image that is cut", lambda: good(image=picture(90)[:90]), dropped={"image_damaged": 1}
    ),
    _case(
        "image-of-no-bytes-in-a-tar",
        "An image without a byte",
        lambda: good(image=b""),
        dropped={"image_undecodable": 1},
    ),
]

_HEADERS = [
    _case(
        "pax-of-anything",
        "Extended headers with unknown keys, and times that are no numbers",
        lambda: (
            pax(pax_record("mtime", "yesterday"), pax_record("x", "\0"), pax_record("hdrcharset", "BINARY")) + good()
        ),
        CAPTION,
    ),
    _case(
        "pax-name",
        "An extended header that moves a member to `/etc/it.png`",
        lambda: (
            pax(pax_record("path", "/etc/it.png"))
            + member("x", IMAGE)
            + pax(pax_record("path", "/etc/it.txt"))
            + member("y", CAPTION.encode())
        ),
        CAPTION,
    ),
    _case(
        "pax-global",
        "A global extended header",
        lambda: pax(pax_record("comment", "x" * 5_000), kind=tarfile.XGLTYPE) + good(),
        CAPTION,
    ),
    _case(
        "gnu-long-name-with-nul",
        "A long name with NUL in it",
        lambda: (
            member("././@LongLink", b"it.png\0junk\0", type=tarfile.GNUTYPE_LONGNAME)
            + member("x", IMAGE)
            + member("it.txt", CAPTION.encode())
        ),
        CAPTION,
    ),
    _case(
        "sparse-old",
        "A sparse member of 1 TB",
        lambda: _sparse("old", 1 << 40),
        dropped=BROKEN,
        error="it.png: a sparse member",
    ),
    _case(
        "sparse-in-pax",
        "A sparse member of 1 TB, of the newer form",
        lambda: _sparse("0.1", 1 << 40),
        dropped=BROKEN,
        error="it.png: a sparse member",
    ),
    _case(
        "sparse-in-pax-1-0",
        "A sparse member, of the newest form",
        lambda: _sparse("1.0", 1 << 20),
        dropped=BROKEN,
        error="it.png: a sparse member",
    ),
    _file(
        "pax-endless",
        "An extended header that says it has 1 GB",
        lambda: _headed(tarfile.XHDTYPE, 1 << 30),
        "cannot be read as tar (header of 1073741824 bytes)",
    ),
    _file(
        "pax-of-length-zero",
        "A record of length zero, which readers once never left",
        lambda: tar("pax-of-length-zero", pax(b"0 path=it.png\n"), good()),
        "cannot be read as tar (…)",
    ),
    _file(
        "pax-size-negative",
        "An extended header with a negative size",
        lambda: tar("pax-size-negative", pax(pax_record("size", "-5120")), good()),
        "cannot be read as tar (member of -5120 bytes)",
    ),
    _file(
        "pax-size-huge",
        "An extended header with a size of 10^30",
        lambda: tar("pax-size-huge", pax(pax_record("size", str(10**30))), good()),
        f"cannot be read as tar (member of {10**30} bytes)",
    ),
    _file(
        "pax-map-of-nothing",
        "A map of holes that is none",
        lambda: tar(
            "pax-map-of-nothing", pax(pax_record("GNU.sparse.major", "1"), pax_record("GNU.sparse.minor", "0")), good()
        ),
        "cannot be read as tar (broken extended header: …)",
    ),
    _file(
        "gnu-long-name-negative",
        "A long name of minus 512 bytes",
        lambda: (
            sample("x", "before", after)
            + patched(header("long", 0, type=tarfile.GNUTYPE_LONGNAME), 124, _number(-512))
            + good()
        ),
        "cannot be read as tar (header of -512 bytes)",
    ),
    _file(
        "gnu-long-name-endless",
        "A long name that says it has 1 GB",
        lambda: _headed(tarfile.GNUTYPE_LONGNAME, 1 << 30),
        "cannot be read as tar (header of 1073741824 bytes)",
    ),
    _file(
        "size-negative",
        "A member of minus 1,024 bytes",
        lambda: tar("size-negative", _sized(-1024)),
        "cannot be read as tar (member of -1024 bytes)",
    ),
    _file(
        "size-huge",
        "A member of 1 EB",
        lambda: tar("size-huge", _sized(1 << 60)),
        "cannot be read as tar (member of 1152921504606846976 bytes)",
    ),
    _file(
        "checksum-wrong",
        "A header whose checksum is wrong",
        lambda: tar("checksum-wrong", header("it.png", 0)[:148] + b"000000\0 " + header("it.png", 0)[156:]),
        "cannot be read as tar (bad checksum)",
    ),
    _file(
        "tar-cut-in-a-header",
        "A tar cut inside a header",
        lambda: tar("tar-cut-in-a-header")[: -1024 - 100],
        "cannot be read as tar (…)",
    ),
    _file(
        "tar-cut-in-a-member",
        "A tar cut inside an image",
        lambda: tar("tar-cut-in-a-member", good())[: 3_000 - 200],
        "cannot be read as tar (…)",
    ),
    _file("tar-of-html", "A page called `.tar`", lambda: b"<!DOCTYPE html>" * 99, "cannot be read as tar (…)"),
    _file("tar-of-zip", "A ZIP called `.tar`", lambda: b"PK\3\4" + bytes(2_000), "cannot be read as tar (…)"),
]

_COMPRESSED = [
    _case(
        "tar-in-gzip-members",
        "A tar in two gzip members",
        lambda: good(),
        CAPTION,
        pack=lambda data: gzipped(data[:2_000]) + gzipped(data[2_000:]),
        end=".gz",
    ),
    Case(
        "image-of-300-mb-in-a-tar",
        "An image of 300 MB of NUL in a tar of 300 kB",
        "webdataset",
        ".tar.gz",
        lambda: _tar_bomb("image-of-300-mb-in-a-tar"),
        {"image_damaged": 1},
    ),
    _file(
        "tar-gz-cut",
        "A compressed tar that is cut",
        lambda: gzipped(tar("tar-gz-cut"))[:-40],
        "cannot be read as tar (…)",
        suffix=".tar.gz",
    ),
    _file(
        "tar-gz-wrong-checksum",
        "A compressed tar whose checksum is wrong",
        lambda: gzipped(tar("x", good() * 1))[:-8] + b"\0" * 8,
        "cannot be read as tar (…)",
        suffix=".tar.gz",
    ),
    _file(
        "tar-zst-cut",
        "A tar in zstd that is cut",
        lambda: zstd(tar("tar-zst-cut"))[:-40],
        "cannot be read as tar (…)",
        suffix=".tar.zst",
    ),
]


def _tar_bomb(name: str) -> bytes:
    head = sample(name, "before", before) + header("it.png", (300 << 20) + 512) + b"\x89PNG\r\n\x1a\n".ljust(512, b"\0")
    tail = member("it.txt", CAPTION.encode()) + sample(name, "after", after) + b"\0" * 1_024
    return gzip_bomb(head, 300, tail)


def _headed(kind: bytes, size: int) -> bytes:
    return sample("x", "before", after) + header("long", size, type=kind) + b"n" * 2_048


def _nested(depth: int) -> bytes:
    data = b"the innermost"
    for _ in range(depth):
        data = member("inner.tar", data) + bytes(1_024)
    return member("inner.tar", data)


CASES = [*_MEMBERS, *_CONTENTS, *_HEADERS, *_COMPRESSED]
