"""Writes a first config for a user's files: guesses what they are from names, schemas and first rows, and says so."""

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import pyarrow as pa

from altalign import storage
from altalign.data.shards import IMAGE_NAMES
from altalign.errors import UnreadableError, UsageError
from altalign.pipelines import read
from altalign.pipelines.opening import not_inputs
from altalign.pipelines.opening.find import find_run
from altalign.pipelines.read import folder
from altalign.pipelines.read.tables import arrow, lines, table
from altalign.settings.curate import CurateConfig, InputSettings, named_after
from altalign.terminal import shown

_ARCHIVES = (".warc", ".warc.gz", ".warc.zst")
_METADATA = (".wat", ".wat.gz", ".warc.wat.gz")
_TABLES = (".parquet", ".pq", ".arrow", ".csv", ".tsv", ".jsonl", ".ndjson")
_ENDINGS = {
    "wat": _METADATA,
    "warc": _ARCHIVES,
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
_FILES_LISTED = 8


@dataclass(frozen=True)
class Guess:
    """An input as it was guessed: its settings, each with a comment on it, and where its images are."""

    settings: Mapping[str, object]
    comments: Mapping[str, str]
    images: Literal["in hand", "by URL", "archive"]  # the last: in web archives, also those of other inputs' URLs


def first_config(paths: Sequence[str], *, run_folder: str) -> str:
    """The text of a config for these files and folders.

    Raises:
        UsageError: nothing is there, or nothing that can be curated; the error says what there is.
    """
    guesses = [_guess(path.rstrip("/") or "/") for path in paths]
    for guess in guesses:
        path = cast(list[str], guess.settings["paths"])[0]
        if guess.settings["kind"] == "folder" and storage.is_inside(run_folder, path):
            raise UsageError(f"{run_folder}: in the folder of images {path}; name another with --run, outside of it")
        if storage.is_inside(path, run_folder):
            raise UsageError(f"{run_folder}: the input {path} is in it; name another with --run")
    text, where = _text(guesses, run_folder), "the config that was guessed"
    find_run(CurateConfig.from_values(tomllib.loads(text), where=where), config_path=where)
    return text


def _text(guesses: Sequence[Guess], run_folder: str) -> str:
    inputs, names = "", list[str]()
    for guess in guesses:
        inputs += "\n[[input]]\n"
        if len(guesses) > 1:  # by which rows of one are told from those of another
            names.append(named_after(cast(list[str], guess.settings["paths"])[0], names))
            inputs += f"name = {_toml(names[-1])}\n"
        for name, value in guess.settings.items():
            line = f"{name} = {_toml(value)}"
            inputs += (f"{line:<40} # {guess.comments[name]}" if name in guess.comments else line) + "\n"
    fetch = 'source = "archive"                       # images are in the inputs; "web" downloads the others'
    where = {guess.images for guess in guesses}
    if "by URL" in where and "archive" not in where:  # archives are there for the URLs of the others
        rest = "; those in hand are read where they are" if "in hand" in where else ""
        fetch = f"""source = "web"                           # images are downloaded by URL{rest}
# user_agent = "altalign/VERSION (+https://example.org/our-crawl)"  # where you can be reached"""
    return f"""\
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


def _toml(value: object) -> str:
    if isinstance(value, str) and "\\" in value and "'" not in value:
        return f"'{value}'"
    return json.dumps(value, ensure_ascii=False)


# What a path is -------------------------------------------------------------------------------------------------------


def _guess(path: str) -> Guess:
    storage.check_input(path)
    if storage.kind(path) == "folder":
        return _of_folder(path)
    paths = sorted(storage.find(path))
    if not paths:
        raise UsageError(f"{path}: nothing is there; give files, folders or globs that exist")
    name = storage.name(paths[0]).lower()
    kind = _kind_of(name)
    if kind is None:
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
        comment = f"of the splits {', '.join(map(str, splits))}"
        return replace(guess, comments={**guess.comments, "paths": comment})
    if _is_run(path):
        return _of_folder(storage.join(path, "shards"))
    saved = arrow.listed(path)
    if list(saved) != [path]:
        return _of_files("table", [path], saved, what="a data set saved by Hugging Face's save_to_disk")
    names = storage.names(path)
    of_kinds = {kind: [name for name in names if _kind_of(name) == kind] for kind in _ENDINGS}
    for kind in ("webdataset", "wat", "warc"):
        if some := of_kinds[kind]:
            files = [storage.join(path, name) for name in some]
            guess = _of_files(kind, [path] if kind == "webdataset" else _globs(path, kind, some), files)
            stems = {name.partition(".")[0] for name in some}  # side-cars of tars belong to these
            others = [name for name in names if _kind_of(name) and name.partition(".")[0] not in stems]
            if not others:
                return guess
            left_out = f"{guess.comments['kind']}; left out are {', '.join(map(shown, others[:_FILES_LISTED]))}"
            return replace(guess, comments={**guess.comments, "kind": left_out})
    try:
        parts = folder.parts(path, InputSettings(kind="folder", paths=[path]))
    except UsageError:
        parts = []
    if parts:
        return _of_images(path, parts[0], of_kinds["table"])
    if some := of_kinds["table"]:
        return _of_files("table", _globs(path, "table", some), [storage.join(path, name) for name in some])
    entries = sorted(storage.entries(path))
    if runs := [name for name in entries if _is_run(storage.join(path, name))]:
        holds = f"it holds runs ({', '.join(map(shown, runs[:_FILES_LISTED]))})"
        raise UsageError(f"{path}: {holds}; give the folder of each, or make one run of them: altalign merge")
    listed = ", ".join(map(shown, entries[:_FILES_LISTED])) or "nothing"
    lacks = f"no web archive, table, tar, image or saved data set in it ({listed})"
    raise UsageError(f"{path}: {lacks}; give the folder that holds them")


def _globs(path: str, kind: str, names: Sequence[str]) -> list[str]:
    """A glob for each ending that the files have."""
    endings = set[str]()
    for name in names:
        longest = max(len(end) for end in _ENDINGS[kind] if name.lower().endswith(end))
        endings.add(name[len(name) - longest :])
    return [storage.join(path, f"*{end}") for end in sorted(endings)]


def _of_files(kind: str, paths: list[str], files: Sequence[str], *, what: str = "") -> Guess:
    count = f"{len(files):,} file{'s' * (len(files) > 1)}"
    settings: dict[str, object] = {"kind": kind, "paths": paths}
    if kind == "table":
        return _of_table(settings, {"kind": f"{what or 'a table'}: {count}"}, files[0])
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
    about = "web archives that hold images" if has_image else "web archives of pages alone"
    return Guess(settings, {"kind": f"{about}: {count}"}, "archive" if has_image else "by URL")


def _of_table(settings: dict[str, object], comments: dict[str, str], path: str) -> Guess:
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
        if caption and (of_folder := _of_names(path, every, caption)):
            return of_folder
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
    _keep(settings, comments, every)
    return Guess(settings, comments, "in hand" if image else "by URL")


def _of_images(path: str, part: folder.FolderPart, tables: Sequence[str]) -> Guess:
    """A folder of images: captions are beside them, in a table in the folder, or in the names."""
    files = folder.files(part, InputSettings(kind="folder", paths=[path]))
    settings: dict[str, object] = {"kind": "folder", "paths": [path]}
    images = [file.name for file in files if folder.is_image(file.name)]
    stems = {name.rpartition(".")[0] for name in images}
    texts = sum(not folder.is_image(file.name) and file.name.rpartition(".")[0] in stems for file in files)
    count = f"{len(images):,}{' and more' if part.end is not None else ''} images"
    comments = {"kind": f"a folder of {count}, {texts:,} texts beside them{not_inputs.not_decoded(images)}"}
    if texts:
        return Guess(settings, comments, "in hand")
    for of_table in (storage.join(path, name) for name in tables):
        columns = _columns(of_table)
        file = _column("file_column", _holding(columns, "text"))
        caption = _column("caption_column", _holding(columns, "text", "texts", "bytes"))
        guessed = {**settings, "captions": of_table, "file_column": file, "caption_column": caption}
        if file and caption:
            try:
                folder.check([path], InputSettings.model_validate(guessed))
            except (UsageError, UnreadableError):
                continue
            comments["captions"] = f"of {', '.join(columns)}"
            _keep(guessed, comments, columns)
            return Guess(guessed, comments, "in hand")
    settings["caption_pattern"] = r"(.*/)?(?P<caption>[^/]+)\.\w+"
    comments["caption_pattern"] = f"no texts are beside them: names are captions, such as {shown(images[0])}"
    return Guess(settings, comments, "in hand")


def _of_names(path: str, columns: Mapping[str, str], caption: str) -> Guess | None:
    """A table of names of images and their captions, with the folder that it is in; None where they are not there."""
    file = _column("file_column", [name for name in _holding(columns, "text") if name != caption])
    if not file:
        return None
    of_images = path.rpartition("/")[0] or "."
    settings: dict[str, object] = {"kind": "folder", "paths": [of_images], "captions": path}
    settings |= {"file_column": file, "caption_column": caption}
    try:
        folder.check([of_images], InputSettings.model_validate(settings))
    except (UsageError, UnreadableError) as error:
        raise UsageError(
            f'{path}: {file} has names of images, and {error}; write kind = "folder", paths = [the folder of '
            f'these], captions = "{path}", file_column = "{file}", caption_column = "{caption}"'
        ) from None
    comments = {"kind": "images of a folder", "captions": f"of {', '.join(columns)}"}
    _keep(settings, comments, columns)
    return Guess(settings, comments, "in hand")


# Columns --------------------------------------------------------------------------------------------------------------


def _keep(settings: dict[str, object], comments: dict[str, str], columns: Mapping[str, str]) -> None:
    """Keep the columns that tell where a pair is from, and its licence."""
    names = [name for name in _holding(columns, "text", "number") if _IDS.fullmatch(name)]
    if kept := [name for name in names if name not in settings.values()]:
        settings["keep_columns"] = kept
        comments["keep_columns"] = "guessed by their names; each pair has them in `extra`"


def _holding(columns: Mapping[str, str], *kinds: str) -> list[str]:
    return [name for name, holds in columns.items() if holds in kinds]


def _column(setting: str, names: Sequence[str]) -> str:
    """The column of the most telling name; empty where none is known."""
    plain = {re.sub(r"[\s_-]", "", name).lower(): name for name in reversed(names)}
    return next((plain[name] for name in _NAMES[setting] if name in plain), "")


def _columns(path: str) -> dict[str, str]:
    """The columns of a table, and what each holds: text, texts (lists), bytes or number; others are left out."""
    if lines.form_of(path) in lines.BINARY:
        return {field.name: holds for field in table.schema_of(path) if (holds := _holds(field.type))}
    return dict.fromkeys(lines.names_of(path, [])[0], "text")


def _holds(kind: Any) -> str:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return "texts" if _holds(kind.value_type) == "text" else ""
    if pa.types.is_struct(kind):
        at = kind.get_field_index("bytes")
        return _holds(kind.field(at).type) if at >= 0 else ""
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return "bytes"
    if pa.types.is_integer(kind):
        return "number"
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    return "text" if is_text else ""
