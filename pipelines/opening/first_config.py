"""Writes a first config for a user's files: guesses what they are from names, schemas and first bytes, and says so."""

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

from altalign import storage
from altalign.errors import UnreadableError, UsageError
from altalign.pipelines import read
from altalign.pipelines.opening import not_inputs
from altalign.pipelines.opening.find import find_run
from altalign.pipelines.read import folder
from altalign.pipelines.read.tables import lines, table
from altalign.settings.curate import CurateConfig, InputSettings, named_after
from altalign.terminal import many, shown

_KINDS = {  # endings of names
    "webdataset": r"\.(tar|tar\.gz|tgz|tar\.zst)",
    "wat": r"(\.warc)?\.wat(\.gz)?",
    "warc": r"\.warc(\.gz|\.zst)?",
    "table": r"\.(parquet|pq|arrow)|\.(csv|tsv|jsonl|ndjson)(\.gz|\.zst)?",
}
# names that columns have in data sets that people share, the most telling first; in lower case, without _, - and spaces
_NAMES = {
    "url_column": ("url", "imageurl", "imgurl", "imagelink", "link", "src", "thumbnailurl", "cocourl", "flickrurl"),
    "caption_column": (
        *("caption", "captions", "alttext", "alt", "text", "texts", "title", "description", "sentence", "sentences"),
        *("raw", "prompt", "captionreferencedescription"),
    ),
    "image_column": ("image", "jpg", "img", "png", "picture", "imagebytes", "bytes"),
    "page_url_column": ("pageurl", "page", "sourceurl", "originalurl", "referrer", "foilurl"),
    "file_column": ("filename", "file", "filepath", "path", "imagepath", "image", "img", "name"),
}
# names of columns that tell a pair's origin and rights, which go along with it
_IDS = re.compile(
    r"(?i:(.*[\W_])?(id|uid|uuid|guid|key)|(photo|image|img|coco|sent|sample|caption)id|rights|credits?|"
    r".*(licen[cs]e|copyright|attribution).*)|.*[a-z](Id|ID)"
)
# what a column holds, by its type as Arrow writes it
_HOLDS = {
    "text": r"(large_)?string(_view)?|dictionary<values=(large_)?string,.*",
    "texts": r"(large_)?list<\w+: (large_)?string\b.*>",
    "bytes": r"(large_)?binary|struct<.*\bbytes: (large_)?binary\b.*>",
    "number": r"u?int\d+",
}
_FILES_LISTED = 8
_toml = partial(json.dumps, ensure_ascii=False)


class Guess(NamedTuple):
    """An input as it was guessed: its settings, a comment on them, and where its images are."""

    settings: dict[str, Any]
    comment: str
    images: Literal["in hand", "by URL", "archive"]  # the last: in web archives, also those of other inputs' URLs


def first_config(paths: Sequence[str], *, run_folder: str) -> str:
    """The text of a config for these files and folders.

    Raises:
        UsageError: nothing is there, or nothing that can be curated; the error says what there is.
    """
    guesses, inputs, names = [_guess(path.rstrip("/") or "/") for path in paths], "", list[str]()
    for guess in guesses:
        path = guess.settings["paths"][0]
        if storage.is_inside(path, run_folder) or (
            guess.settings["kind"] == "folder" and storage.is_inside(run_folder, path)
        ):
            raise UsageError(f"{run_folder}: not apart from the input {path}; name another folder with --run")
        inputs += f"\n[[input]]  # {guess.comment}\n"
        if len(guesses) > 1:  # by which rows of one are told from those of another
            names.append(named_after(path, names))
            inputs += f"name = {_toml(names[-1])}\n"
        inputs += "".join(f"{name} = {_toml(value)}\n" for name, value in guess.settings.items())
    fetch = 'source = "archive"                       # images are in the inputs; "web" downloads the others'
    images = {guess.images for guess in guesses}
    if "by URL" in images and "archive" not in images:  # archives are there for the URLs of the others
        fetch = """source = "web"                           # images that are not in the inputs are downloaded by URL
# user_agent = "altalign/VERSION (+https://example.org/our-crawl)"  # where you can be reached"""
    text = f"""\
# Written by `altalign init`. What was guessed is said; change it where it is wrong.
# Try it without work: altalign curate THIS_FILE --dry-run. All settings: config.toml of the run

[run]
folder = {_toml(run_folder)}
{inputs}
[fetch]
{fetch}

[text]                                   # ALIGN's rules; each is counted, with samples, in the report
words_at_least = 3
words_at_most = 20

[image]
short_side_above_px = 200

# [decontaminate]
# test_sets = ["data/coco/val2017"]      # near-duplicates of these images are dropped
"""
    where = "the config that was guessed"
    find_run(CurateConfig.from_values(tomllib.loads(text), where=where), config_path=where)
    return text


def _guess(path: str) -> Guess:
    storage.check_input(path)
    if storage.kind(path) == "folder":
        return _of_folder(path)
    paths = sorted(storage.find(path))
    if not paths:
        raise UsageError(f"{path}: nothing is there; give files, folders or globs that exist")
    kind, _ = _kind_of(storage.name(paths[0]))
    if not kind:
        raise UsageError(f"{paths[0]}: not the name of a web archive, a table or a tar; {not_inputs.advice(paths[0])}")
    return _of_files(kind, [path], paths)


def _kind_of(name: str) -> tuple[str, str]:
    """The kind of input that a file is by the ending of its name, and that ending; empty where none is known."""
    endings = ((kind, re.search(f"({pattern})$", name, re.IGNORECASE)) for kind, pattern in _KINDS.items())
    return next(((kind, match[0]) for kind, match in endings if match), ("", ""))


def _is_run(path: str) -> bool:
    return storage.exists(storage.join(path, "run.json")) and storage.kind(storage.join(path, "shards")) == "folder"


def _of_folder(path: str) -> Guess:
    """A saved data set, tars, web archives, images or tables, whichever is there first."""
    splits = storage.read_json(storage.join(path, "dataset_dict.json")).get("splits")
    if isinstance(splits, list) and splits:
        return _of_folder(storage.join(path, "train" if "train" in splits else str(splits[0])))
    if _is_run(path):
        return _of_folder(storage.join(path, "shards"))
    saved = table.saved_files(path)
    if list(saved) != [path]:
        return _of_files("table", [path], saved)
    of_kinds: dict[str, list[tuple[str, str]]] = {kind: [] for kind in ("", *_KINDS)}
    for name in storage.names(path):
        kind, ending = _kind_of(name)
        of_kinds[kind].append((storage.join(path, name), ending))
    parts = []
    if not any(of_kinds[kind] for kind in ("webdataset", "wat", "warc")):
        try:
            parts = folder.parts(path, InputSettings(kind="folder", paths=[path]))
        except UsageError:
            parts = []
    if parts:
        return _of_images(path, parts[0], [name for name, _ in of_kinds["table"]])
    for kind in filter(of_kinds.get, _KINDS):
        globs = sorted({storage.join(path, f"*{ending}") for _, ending in of_kinds[kind]})
        # tars by their folder, which side-cars are in
        return _of_files(kind, [path] if kind == "webdataset" else globs, [name for name, _ in of_kinds[kind]])
    entries = sorted(storage.entries(path))
    if runs := [name for name in entries if _is_run(storage.join(path, name))]:
        holds = f"it holds runs ({', '.join(map(shown, runs[:_FILES_LISTED]))})"
        raise UsageError(f"{path}: {holds}; give the folder of each, or make one run of them: altalign merge")
    listed = ", ".join(map(shown, entries[:_FILES_LISTED])) or "nothing"
    lacks = f"no web archive, table, tar, image or saved data set in it ({listed})"
    raise UsageError(f"{path}: {lacks}; give the folder that holds them")


def _of_files(kind: str, paths: list[str], files: Sequence[str]) -> Guess:
    settings: dict[str, Any] = {"kind": kind, "paths": paths}
    count = many(len(files), "file")
    if kind == "table":
        return _of_table(settings, files[0], f"a table: {count}")
    if kind == "webdataset":
        return Guess(settings, f"tars of samples: {count}", "in hand")
    if kind == "wat":
        return Guess(settings, f"metadata of web archives, without images: {count}", "by URL")
    looked_at = [read.look_for_images(path) for path in files[:_FILES_LISTED]]
    if not any(records or has_image for records, has_image in looked_at):
        raise UsageError(f"{files[0]}: no record in it; give archives that hold pages or images")
    has_image = any(is_image for _, is_image in looked_at)
    about = "that hold images" if has_image else "of pages alone"
    return Guess(settings, f"web archives {about}: {count}", "archive" if has_image else "by URL")


def _of_table(settings: dict[str, Any], path: str, comment: str) -> Guess:
    not_inputs.check_text(path, lines.form_of(path))
    columns = _columns(path)
    names, of_bytes = ", ".join(map(shown, list(columns)[:12])), _holding(columns, "bytes")
    image = _column("image_column", of_bytes) or next(iter(of_bytes), "")
    caption = _column("caption_column", _holding(columns, "text", "texts"))
    url, page = (_column(name, _holding(columns, "text")) for name in ("url_column", "page_url_column"))
    if not columns:
        raise UsageError(f"{path}: no header and no row in it; give a table that holds some")
    if not caption or not (url or image):
        if len(columns) == 1:  # of another delimiter
            read.check([path], InputSettings(kind="table", paths=[path]))
        if guess := _captioned(storage.folder_of(path) or ".", path, columns, "images beside a table"):
            return guess
        lacking = "captions" if not caption else "URLs or images"
        raise UsageError(
            f"{path}: no column is known to hold {lacking}, there are {names}; write the config by hand, and name them "
            "in caption_column, url_column or image_column; of a table of files of images, give their folder"
        )
    settings |= {"url_column": url, "caption_column": caption}
    settings |= {name: value for name, value in (("image_column", image), ("page_url_column", page)) if value}
    settings |= _kept(columns, settings)
    return Guess(settings, f"{comment}; columns are guessed, there are {names}", "in hand" if image else "by URL")


def _of_images(path: str, part: folder.FolderPart, tables: Sequence[str]) -> Guess:
    """A folder of images: captions are beside them, in a table in the folder, or in the names."""
    files = folder.files(part, InputSettings(kind="folder", paths=[path]))
    images = [file.name for file in files if folder.is_image(file.name)]
    stems = {name.rpartition(".")[0] for name in images}
    settings: dict[str, Any] = {"kind": "folder", "paths": [path]}
    comment = f"a folder of {len(images):,}{' and more' if part.end is not None else ''} images"
    unread = not_inputs.not_decoded(images)
    if any(not folder.is_image(file.name) and file.name.rpartition(".")[0] in stems for file in files):
        return Guess(settings, f"{comment}, captions beside them{unread}", "in hand")
    for captions in tables:  # an unreadable one is not passed over
        if guess := _captioned(path, captions, _columns(captions), comment):
            return guess._replace(comment=guess.comment + unread)
    settings["caption_pattern"] = r"(.*/)?(?P<caption>[^/]+)\.\w+"
    return Guess(settings, f"{comment}, whose names are captions, such as {shown(images[0])}{unread}", "in hand")


def _captioned(path: str, captions: str, columns: Mapping[str, str], comment: str) -> Guess | None:
    """A folder of images whose captions a table has, by their names; None where the table is of something else."""
    file = _column("file_column", _holding(columns, "text"))
    caption = _column("caption_column", _holding(columns, "text", "texts"))
    settings = {"kind": "folder", "paths": [path], "captions": captions, "file_column": file, "caption_column": caption}
    try:
        if file and caption:
            folder.check([path], InputSettings.model_validate(settings))
            settings |= _kept(columns, settings)
            return Guess(settings, f"{comment}, captions in a table of {', '.join(map(shown, columns))}", "in hand")
    except (UsageError, UnreadableError):
        pass
    return None


def _kept(columns: Mapping[str, str], settings: Mapping[str, Any]) -> dict[str, list[str]]:
    """The columns that tell where a pair is from, and its licence, as a setting; none, and it is left out."""
    ids = [name for name in _holding(columns, "text", "number") if _IDS.fullmatch(name)]
    kept = [name for name in ids if name not in settings.values()]
    return {"keep_columns": kept} if kept else {}


def _holding(columns: Mapping[str, str], *kinds: str) -> list[str]:
    return [name for name, holds in columns.items() if holds in kinds]


def _column(setting: str, names: Sequence[str]) -> str:
    """The column of the most telling name; empty where none is known."""
    plain = {re.sub(r"[\s_-]", "", name).lower(): name for name in reversed(names)}
    return next((plain[name] for name in _NAMES[setting] if name in plain), "")


def _columns(path: str) -> dict[str, str]:
    """The columns of a table, and what each holds: text, texts (lists), bytes or number; others are left out."""
    if lines.form_of(path) in lines.BINARY:
        types = [(field.name, str(field.type)) for field in table.schema_of(path)]
        return {name: kind for name, type_ in types for kind, of in _HOLDS.items() if re.fullmatch(of, type_)}
    return dict.fromkeys(lines.names_of(path, [])[0], "text")
