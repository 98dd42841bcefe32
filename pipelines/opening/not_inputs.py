"""Files that people have and that no reader reads as they are: what each is, and the command that makes an input."""

import re
from codecs import BOM_UTF8, getincrementaldecoder
from collections.abc import Iterable
from shlex import quote

from altalign import storage
from altalign.errors import UsageError, bring
from altalign.filters.image_headers import HAS_HEIF
from altalign.pipelines.read.tables import lines
from altalign.terminal import shown

# names of images that are counted as such, and whose content no decoder here reads
_OF_HEIF = (".heic", ".heif")
NOT_DECODED = (*(() if HAS_HEIF else _OF_HEIF), ".jp2", ".j2k", ".jxl", ".svg", ".psd")
_LOOKED_AT_BYTES = 1 << 20
_TO_LINES = {
    "captions of COCO, in one object": "u={i['id']:i for i in d['images']}; rows=[{**u[a['image_id']],**a} for a in "
    "d['annotations'] if 'caption' in a]",
    "captions of Karpathy's splits": "rows=[{**{k:v for k,v in i.items() if k!='sentences'},'caption':s['raw']} "
    "for i in d['images'] for s in i['sentences']]",
    "rows in one JSON array": "rows=d",
}
_SHEETS, _PACKED = (".xlsx", ".xls", ".ods"), (".zip", ".7z", ".rar")


def advice(path: str) -> str:
    """What a file of no known ending is, and what to do; in a line."""
    name = storage.name(path).lower()
    if name.endswith(_PACKED):
        return "an archive of files: unpack it, and give `altalign init` the folder that comes of it"
    if name.endswith(_SHEETS):
        return "a spreadsheet: save it as CSV in UTF-8, and give `altalign init` that file"
    head = storage.read_range(path, 0, min(_LOOKED_AT_BYTES, storage.stamp(path).size)).removeprefix(BOM_UTF8)
    if name.endswith(".json"):
        is_array, is_karpathy = head.lstrip()[:1] == b"[", b'"sentences"' in head
        if is_array or b'"images"' in head:
            what = [*_TO_LINES][2 if is_array else int(is_karpathy)]
            program = f"import json,sys; d=json.load(open(sys.argv[1],'rb')); {_TO_LINES[what]}; "
            program += "[print(json.dumps(r)) for r in rows]"
            then = "move that to the folder of the images, and give that folder" if is_karpathy else "give that"
            made = quote(f"{path[:-5]}.jsonl")
            return f'{what}: `python3 -c "{program}" {quote(path)} > {made}`, then {then} to `altalign init`'
    first = head.split(b"\n", 1)[0].strip()
    if re.match(rb"(https?|file)://\S+$", first):
        return "a list of URLs, without captions: write a CSV whose first line is url,caption, a pair a line"
    if re.match(rb"\S+\.\w+(#\d+)?\t", first):
        made = f"printf 'file\\tcaption\\n'; sed 's/#[0-9]*\\t/\\t/' {quote(path)}"
        return f"names and captions with tabs: `({made}) > {quote(f'{path}.tsv')}`, then give that to `altalign init`"
    if b"," in first and name.endswith(".txt"):
        return f"a CSV by another name: `mv {quote(path)} {quote(f'{path[:-4]}.csv')}`, then give that or its folder"
    return "give one of these, or a folder of images"


def check_text(path: str, form: str) -> None:
    """Refuse a table of text in another encoding than UTF-8, or of URLs that are paths of this machine."""
    if form in lines.BINARY:
        return
    with lines.opened(path) as file:
        head = file.read(_LOOKED_AT_BYTES)
    is_utf_16, text = head[:2] in (b"\xff\xfe", b"\xfe\xff"), getincrementaldecoder("utf-8")("replace").decode(head)
    # in other encodings a few letters may read as UTF-8, and a few rows of UTF-8 may be broken
    if is_utf_16 or 2 * text.count("\ufffd") > len(text) - len(text.encode("ascii", "ignore")):
        stem, _, ending = path.rpartition(".")
        encoding, what = ("UTF-16", "but UTF-16") if is_utf_16 else ("ENCODING", "and in which encoding is not known")
        repair = f"iconv -f {encoding} -t UTF-8 {quote(path)} > {quote(f'{stem}.utf8.{ending}')}"
        fill_in = "" if is_utf_16 else "; write its name for ENCODING, often WINDOWS-1252"
        raise UsageError(f"{path}: not UTF-8, {what}; `{repair}` makes it so{fill_in}")
    if re.search(rb"(^|[\s,\"])file://", head):
        raise UsageError(
            f"{path}: its URLs begin with file://, which are not fetched; write paths below a folder of images, "
            'and: kind = "folder", paths = ["FOLDER"], captions = the table, file_column = that column'
        )


def not_decoded(names: Iterable[str]) -> str:
    """Says of images by name how many are of formats that are not read; empty: none."""
    endings = [ending for name in names for ending in NOT_DECODED if name.lower().endswith(ending)]
    counts = ", ".join(f"{endings.count(ending):,} {ending}" for ending in NOT_DECODED if ending in endings)
    repair = f" (HEIC is read with the extra heif: {bring('heif')})" if {*_OF_HEIF} & {*endings} else ""
    return f"; not read, and dropped as image_undecodable: {shown(counts)}{repair}" if counts else ""
