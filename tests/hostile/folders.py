"""Folders of images with names, texts and links that are odd."""

import io
import tarfile
from collections.abc import Mapping
from functools import partial

from tests.hostile.cases import BROKEN, NONE, Case, after, before
from tests.hostile.files import MARK, header, member, picture, sample, signed

CAPTION = "a picture in a folder"
IMAGE = picture(90) + MARK  # which decoders do not look at
TEXT = member("it.txt", CAPTION.encode())
GOOD = member("it.png", IMAGE) + TEXT


def _case(
    name: str,
    about: str,
    content: bytes,
    *kept: str,
    dropped: Mapping[str, int] = NONE,
    error: str = "",
    settings: str = "",
) -> Case:
    """A folder, as a tar of it, in which this content stands beside good samples."""

    def build() -> bytes:
        return sample(name, "before", before) + signed(name, content) + sample(name, "after", after) + bytes(1024)

    return Case(name, about, "folder", "", build, dropped, kept, error=error, settings=settings)


def _refused(name: str, about: str, content: bytes, error: str) -> Case:
    return Case(name, about, "folder", "", lambda: content + bytes(1024), exit_code=2, error=error)


def _table(name: str, rows: bytes) -> tuple[bytes, str]:
    """A table of captions of the folder of a case, and the setting that names it."""
    lines = "".join(f"{which}.png,{text(name)}\n" for which, text in (("before", before), ("after", after)))
    data = b"file_name,caption\n" + lines.encode() + rows
    return member("captions.csv", data), f'captions = "input/{name}/captions.csv"\n'


def _of_table(name: str, about: str, rows: bytes, *kept: str, dropped: Mapping[str, int], error: str = "") -> Case:
    content, settings = _table(name, rows)
    return _case(name, about, member("it.png", IMAGE) + content, *kept, dropped=dropped, error=error, settings=settings)


_text = partial(_case, dropped=BROKEN)

CASES = [
    _text(
        "folder-text-alone",
        "A text without an image",
        member("README.txt", b"read me"),
        error="a caption without an image of its name beside it",
    ),
    _case("folder-image-alone", "An image without a text", member("it.png", IMAGE), dropped={"text_empty": 1}),
    _text(
        "folder-text-in-latin-1",
        "A text in another charset",
        member("it.png", IMAGE) + member("it.txt", "une forêt très verte".encode("latin-1")),
        error="not UTF-8 (byte …); convert the file",
    ),
    _text(
        "folder-text-of-17-mb",
        "A text of 17 MB",
        member("it.png", IMAGE) + member("it.txt", b"a" * 17_000_000),
        error="longer than 16 MiB",
    ),
    _text(
        "folder-json-broken",
        "A `.json` that is none",
        GOOD + member("it.json", b'{"caption": '),
        error="no JSON: …",
    ),
    _text(
        "folder-json-of-a-list",
        "A `.json` that is a list",
        member("it.png", IMAGE) + member("it.json", b'["a picture"]'),
        error="list, where an object is meant",
    ),
    _text(
        "folder-json-of-numbers",
        "Captions that are a list with a number",
        member("it.png", IMAGE) + member("it.json", b'{"caption": ["a picture in a folder", 7]}'),
        error="caption is no string but int",
    ),
    _case(
        "folder-two-images-of-a-name",
        "An image and another format of it: the text is that of both",
        GOOD + member("it.gif", IMAGE + b"other"),
        CAPTION,
        CAPTION,
    ),
    _case(
        "folder-image-of-text",
        "An image that is a text",
        member("it.jpg", b"no image at all") + TEXT,
        dropped={"image_undecodable": 1},
    ),
    _case(
        "folder-image-of-nothing", "An image of 0 bytes", member("it.jpg", b"") + TEXT, dropped={"image_undecodable": 1}
    ),
    _case(
        "folder-image-cut",
        "An image that ends in its middle",
        member("it.png", picture(91)[: len(picture(91)) // 2]) + TEXT,
        dropped={"image_damaged": 1},
    ),
    _text(
        "folder-name-of-controls",
        "A name that would control a terminal",
        member("\x1b[2J\n.png", IMAGE),
        error="a name that is not UTF-8 or holds control characters; rename the file",
    ),
    _text(
        "folder-name-not-utf-8",
        "A name in Latin-1",
        member("for\udceat.png", IMAGE),
        error="a name that is not UTF-8 or holds control characters; rename the file",
    ),
    _case(
        "folder-names-of-all-kinds",
        "Points, spaces, signs and other scripts in names, and capital letters in their endings",
        b"".join(
            member(f"{name}.PNG", IMAGE + name.encode()) + member(f"{name}.TXT", CAPTION.encode())
            for name in ("a.b c", "[x]*?", "犬", "-rf", "it%20is", "#1")
        ),
        *[CAPTION] * 6,
    ),
    _case(
        "folder-hidden",
        "Files and folders that a system hides: they are left out",
        b"".join(member(name, IMAGE) for name in ("._it.png", ".cache/it.png", ".DS_Store")),
    ),
    _case(
        "folder-of-itself",
        "A link to the folder that it is in",
        GOOD + header("again", 0, type=tarfile.SYMTYPE, linkname="."),
        CAPTION,
    ),
    _text(
        "folder-link-to-nothing",
        "An image that is a link which leads nowhere",
        header("it.png", 0, type=tarfile.SYMTYPE, linkname="gone.png"),
        error="cannot be read (a link that leads nowhere)",
    ),
    _case(
        "folder-named-as-an-image",
        "A folder with the name of an image",
        member("it.png/it.png", IMAGE) + member("it.png/it.txt", CAPTION.encode()),
        CAPTION,
    ),
    _case(
        "folder-pipe",
        "A pipe with the name of an image: it is not opened",
        header("it.png", 0, type=tarfile.FIFOTYPE) + member("it.txt", b"a pipe and no picture"),
        dropped={"image_undecodable": 1},
    ),
    _of_table(
        "folder-table-of-other-files",
        "A table of captions of files that are not there",
        b"gone.png,a picture that is gone\n../../../etc/passwd,a picture of users\n,a picture of nothing\n",
        dropped={"record_broken": 3, "text_empty": 1},
        error="…: no such image in input/folder-table-of-other-files",
    ),
    _of_table(
        "folder-table-with-a-broken-row",
        "A table of captions with a row of three fields, and two captions of one image",
        b"it.png,one,two\n./it.png,a picture in a folder\nit.png,a picture in a table\n",
        CAPTION,
        "a picture in a table",
        dropped=BROKEN,
        error="3 fields, where the header has 2",
    ),
    _refused(
        "folder-of-nothing",
        "A folder without files",
        b"",
        "no image in it (no file of such a name); name a folder that holds .jpg, .png or other images",
    ),
    _refused(
        "folder-of-texts",
        "A folder of texts",
        TEXT,
        "no image in it (1 texts, such as it.txt); name a folder that holds .jpg, .png or other images",
    ),
]


def unpacked(data: bytes, folder: str) -> None:
    """Make the folder of a case."""
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        tar.extractall(folder, filter="fully_trusted")
