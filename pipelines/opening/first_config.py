"""Writes a first config for a user's files: guesses what they are from names, schemas and first rows, and says so."""

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from altalign import storage
from altalign.data.shards import IMAGE_NAMES
from altalign.errors import UnreadableError, UsageError
from altalign.pipelines import read
from altalign.pipelines.opening import not_inputs
from altalign.pipelines.opening.find import find_run
from altalign.pipelines.read import folder
from altalign.pipelines.read.tables import lines, table
from altalign.settings.curate import CurateConfig, InputSettings, named_after
from altalign.terminal import many, shown

_TABLES = (".parquet", ".pq", ".arrow", ".csv", ".tsv", ".jsonl", ".ndjson")
_ENDINGS = {
    "wat": (".wat", ".wat.gz", ".warc.wat.gz"),
    "warc": (".warc", ".warc.gz", ".warc.zst"),
    "webdataset": (".tar", ".tar.gz", ".tgz", ".tar.zst"),
    "table": (*_TABLES, *(f"{ending}{more}" for ending in _TABLES[3:] for more in (".gz", ".zst"))),
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


class Guess(NamedTuple):
    """An input as it was guessed: its settings, each with a comment on it, and where its images are."""

    settings: dict[str, Any]
    comments: dict[str, str]
    images: Literal["in hand", "by URL", "archive"]  # the last: in web archives, also those of other inputs' URLs


def first_config(paths: Sequence[str], *, run_folder: str) -> str:
    """The text of a config for these files and folders.

    Raises:
        UsageError: nothing is there, or nothing that can be curated; the error says what there is.
    """
    guesses, inputs, names = [_guess(path.rstrip("/") or "/") for path in paths], "", list[str]()
    for guess in guesses:
        path = guess.settings["paths"][0]
        if guess.settings["kind"] == "folder" and storage.is_inside(run_folder, path):
            raise UsageError(f"{run_folder}: in the folder of images {path}; name another with --run, outside of it")
        if storage.is_inside(path, run_folder):
            raise UsageError(f"{run_folder}: the input {path} is in it; name another with --run")
        inputs += "\n[[input]]\n"
        if len(guesses) > 1:  # by which rows of one are told from those of another
            names.append(named_after(path, names))
            inputs += f"name = {_toml(names[-1])}\n"
        for name, value in guess.settings.items():
            line = f"{name} = {_toml(value)}"
            inputs += (f"{line:<40} # {guess.comments[name]}" if name in guess.comments else line) + "\n"
    fetch = 'source = "archive"                       # images are in the inputs; "web" downloads the others'
    images = {guess.images for guess in guesses}
    if "by URL" in images and "archive" not in images:  # archives are there for the URLs of the others
        rest = "; those in hand are read where they are" if "in hand" in images else ""
        fetch = f"""source = "web"                           # images are downloaded by URL{rest}
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


def _toml(value: object) -> str:
    is_literal = isinstance(value, str) and "\\" in value and "'" not in value
    return f"'{value}'" if is_literal else json.dumps(value, ensure_ascii=False)


# What a path is -------------------------------------------------------------------------------------------------------


def _guess(path: str) -> Guess:
    storage.check_input(path)
    if storage.kind(path) == "folder":
        return _of_folder(path)
    paths = sorted(storage.find(path))
    if not paths:
        raise UsageError(f"{path}: nothing is there; give files, folders or globs that exist")
    name = storage.name(paths[0]).lower()
    if (kind := _kind_of(name)) is None:
        repair = "name the folder that it is in" if name.endswith(IMAGE_NAMES) else not_inputs.advice(paths[0])
        raise UsageError(f"{paths[0]}: not the name of a web archive, a table or a tar; {repair}")
    return _of_files(kind, [path], paths)


def _kind_of(name: str) -> str | None:
    return next((kind for kind, endings in _ENDINGS.items() if name.lower().endswith(endings)), None)


def _is_run(path: str) -> bool:
    return storage.exists(storage.join(path, "run.json")) and storage.kind(storage.join(path, "shards")) == "folder"


def _of_folder(path: str) -> Guess:
    """A saved data set, tars, web archives, images or tables, whichever is there first."""
    splits = storage.read_json(storage.join(path, "dataset_dict.json")).get("splits")
    if isinstance(splits, list) and splits:
        guess = _of_folder(storage.join(path, "train" if "train" in splits else str(splits[0])))
        guess.comments["paths"] = f"of the splits {', '.join(map(str, splits))}"
        return guess
    if _is_run(path):
        return _of_folder(storage.join(path, "shards"))
    saved = table.saved_files(path)
    if list(saved) != [path]:
        return _of_files("table", [path], saved, what="a data set saved by Hugging Face's save_to_disk")
    names = storage.names(path)
    of_kinds = {kind: [name for name in names if _kind_of(name) == kind] for kind in _ENDINGS}
    for kind in filter(of_kinds.get, ("webdataset", "wat", "warc")):
        guess = _of_files_in(path, kind, of_kinds[kind])
        stems = {name.partition(".")[0] for name in of_kinds[kind]}  # side-cars of tars belong to these
        if others := [name for name in names if _kind_of(name) and name.partition(".")[0] not in stems]:
            guess.comments["kind"] += f"; left out are {', '.join(map(shown, others[:_FILES_LISTED]))}"
        return guess
    try:
        parts = folder.parts(path, InputSettings(kind="folder", paths=[path]))
    except UsageError:
        parts = []
    if parts:
        return _of_images(path, parts[0], of_kinds["table"])
    if of_kinds["table"]:
        return _of_files_in(path, "table", of_kinds["table"])
    entries = sorted(storage.entries(path))
    if runs := [name for name in entries if _is_run(storage.join(path, name))]:
        holds = f"it holds runs ({', '.join(map(shown, runs[:_FILES_LISTED]))})"
        raise UsageError(f"{path}: {holds}; give the folder of each, or make one run of them: altalign merge")
    listed = ", ".join(map(shown, entries[:_FILES_LISTED])) or "nothing"
    lacks = f"no web archive, table, tar, image or saved data set in it ({listed})"
    raise UsageError(f"{path}: {lacks}; give the folder that holds them")


def _of_files_in(path: str, kind: str, names: Sequence[str]) -> Guess:
    """Files of a folder, by a glob for each ending that they have; tars by the folder, which their side-cars are in."""
    endings = set[str]()
    for name in names:
        longest = max(len(end) for end in _ENDINGS[kind] if name.lower().endswith(end))
        endings.add(name[len(name) - longest :])
    globs = [path] if kind == "webdataset" else [storage.join(path, f"*{end}") for end in sorted(endings)]
    return _of_files(kind, globs, [storage.join(path, name) for name in names])


def _of_files(kind: str, paths: list[str], files: Sequence[str], *, what: str = "a table") -> Guess:
    settings: dict[str, Any] = {"kind": kind, "paths": paths}
    count = many(len(files), "file")
    if kind == "table":
        return _of_table(settings, {"kind": f"{what}: {count}"}, files[0])
    if kind == "webdataset":
        listed = read.listed(paths, InputSettings(kind="webdataset", paths=paths))
        failed = ', and side-cars of img2dataset: what failed is fetched with fetch.source = "web"'
        return Guess(settings, {"kind": f"tars of samples: {count}{failed * bool({*listed} - {*files})}"}, "in hand")
    if kind == "wat":
        return Guess(settings, {"kind": f"metadata of web archives, without images: {count}"}, "by URL")
    looked_at = [read.look_for_images(path) for path in files[:_FILES_LISTED]]
    if not any(records or has_image for records, has_image in looked_at):
        raise UsageError(f"{files[0]}: no record in it; give archives that hold pages or images")
    has_image = any(is_image for _, is_image in looked_at)
    about = "that hold images" if has_image else "of pages alone"
    return Guess(settings, {"kind": f"web archives {about}: {count}"}, "archive" if has_image else "by URL")


def _of_table(settings: dict[str, Any], comments: dict[str, str], path: str) -> Guess:
    not_inputs.check_text(path, lines.form_of(path))
    every = _columns(path)
    columns = {name: holds for name, holds in every.items() if holds != "number"}
    names, of_bytes = ", ".join(map(shown, list(columns)[:12])), _holding(columns, "bytes")
    image = _column("image_column", of_bytes) or next(iter(of_bytes), "")
    caption = _column("caption_column", _holding(columns, "text", "texts"))
    url, page = (_column(name, _holding(columns, "text")) for name in ("url_column", "page_url_column"))
    if not columns:
        raise UsageError(f"{path}: no header and no row in it; give a table that holds some")
    if not caption or not (url or image):
        if len(columns) == 1:  # of another delimiter
            read.check([path], InputSettings(kind="table", paths=[path]))
        file, of_images = _column("file_column", _holding(every, "text")), path.rpartition("/")[0] or "."
        if caption and file:
            try:
                return _with_captions(of_images, path, every, {"kind": "images of a folder"})
            except (UsageError, UnreadableError) as error:
                raise UsageError(
                    f'{path}: {file} has names of images, and {error}; write kind = "folder", paths = [the folder of '
                    f'these], captions = "{path}", file_column = "{file}", caption_column = "{caption}"'
                ) from None
        lacking = "captions" if not caption else "URLs or images"
        raise UsageError(
            f"{path}: no column is known to hold {lacking}, there are {names}; write the config by hand, and name them "
            "in caption_column, url_column or image_column"
        )
    settings |= {"url_column": url, "caption_column": caption}
    is_named = f"guessed by its name; there are {names}"
    comments["url_column"] = is_named if url else "none; images are known by their bytes"
    are_lists = ": lists, of which each caption is a candidate" if columns[caption] == "texts" else ""
    comments["caption_column"] = f"guessed too{are_lists}"
    if image:
        settings["image_column"], comments["image_column"] = image, "guessed by its type: images are in hand"
    if page:
        settings["page_url_column"] = page
    return _kept(Guess(settings, comments, "in hand" if image else "by URL"), every)


def _of_images(path: str, part: folder.FolderPart, tables: Sequence[str]) -> Guess:
    """A folder of images: captions are beside them, in a table in the folder, or in the names."""
    files = folder.files(part, InputSettings(kind="folder", paths=[path]))
    images = [file.name for file in files if folder.is_image(file.name)]
    stems = {name.rpartition(".")[0] for name in images}
    texts = sum(not folder.is_image(file.name) and file.name.rpartition(".")[0] in stems for file in files)
    count = f"{len(images):,}{' and more' if part.end is not None else ''} images"
    comments = {"kind": f"a folder of {count}, {texts:,} texts beside them{not_inputs.not_decoded(images)}"}
    if texts:
        return Guess({"kind": "folder", "paths": [path]}, comments, "in hand")
    for captions in (storage.join(path, name) for name in tables):
        columns = _columns(captions)  # an unreadable table is not passed over
        try:
            return _with_captions(path, captions, columns, comments)
        except (UsageError, UnreadableError):
            continue
    comments["caption_pattern"] = f"no texts are beside them: names are captions, such as {shown(images[0])}"
    pattern = r"(.*/)?(?P<caption>[^/]+)\.\w+"
    return Guess({"kind": "folder", "paths": [path], "caption_pattern": pattern}, comments, "in hand")


def _with_captions(path: str, table: str, columns: Mapping[str, str], comments: dict[str, str]) -> Guess:
    """A folder of images, with a table of their names and captions; UsageError where it is not of these."""
    settings: dict[str, Any] = {"kind": "folder", "paths": [path], "captions": table}
    settings["file_column"] = _column("file_column", _holding(columns, "text"))
    settings["caption_column"] = _column("caption_column", _holding(columns, "text", "texts", "bytes"))
    if not (settings["file_column"] and settings["caption_column"]):
        raise UsageError(f"{table}: no columns of names and captions")
    folder.check([path], InputSettings.model_validate(settings))
    return _kept(Guess(settings, {**comments, "captions": f"of {', '.join(columns)}"}, "in hand"), columns)


# Columns --------------------------------------------------------------------------------------------------------------


def _kept(guess: Guess, columns: Mapping[str, str]) -> Guess:
    """The same with the columns that tell where a pair is from, and its licence."""
    names = [name for name in _holding(columns, "text", "number") if _IDS.fullmatch(name)]
    if kept := [name for name in names if name not in guess.settings.values()]:
        guess.settings["keep_columns"] = kept
        guess.comments["keep_columns"] = "guessed by their names; each pair has them in `extra`"
    return guess


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
