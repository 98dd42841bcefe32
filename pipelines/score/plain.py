"""Scorers without a model: measures of captions and of pixels, losses of a training, and functions of a user's own."""

import hashlib
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from altalign import storage
from altalign.data.schema import RULES_VERSION, SAMPLE
from altalign.errors import AltalignError, UsageError
from altalign.filters import image_scores, text_scores
from altalign.filters.detections import Found
from altalign.pipelines.score import detectors
from altalign.pipelines.score.scorer import Batch, Prepare, Scorer, named, read, without_nan
from altalign.rules import own as own_rules
from altalign.settings.score import ScoreSettings

_PIXELS = "pixels measured"
LOSSES = "noise/losses.parquet"  # of a training run: key, loss, eps
_OWN_TYPES = (pa.types.is_floating, pa.types.is_integer, pa.types.is_string, pa.types.is_boolean)


def text(of: ScoreSettings, _where: str) -> Scorer:
    """Characters, digits, capitals, repeated and listed words of captions."""
    lines, digest = [], ""
    if of.profanity:
        data = read(of.profanity, f"{_where} profanity")
        digest = hashlib.sha256(data).hexdigest()
        try:
            lines = data.decode("utf-8-sig").splitlines()
        except UnicodeDecodeError as error:
            raise UsageError(f"{of.profanity}: not UTF-8 (byte {error.start}); save it as UTF-8") from None
    listed = text_scores.listed_hashes(lines)
    if of.profanity and not len(listed):
        raise UsageError(f"{of.profanity}: no word is in it; give words, one a line")

    def measure(batch: Batch) -> list["pa.Array[Any]"]:
        return [column.combine_chunks() for column in text_scores.measure(batch.captions, listed).columns]

    rests_on = {"rules": RULES_VERSION, "profanity": digest}
    return Scorer(of.name, named(of.name, text_scores.COLUMNS), rests_on, measure, reads=("caption",))


def image(of: ScoreSettings, where: str) -> Scorer:
    """Sharpness, entropy, flatness and colourfulness of images; faces and boxes of text by models of the user's."""
    asked = [(name, path) for name, path in (("faces", of.faces), ("text_boxes", of.text_boxes)) if path]
    found = [(name, *detectors.load(path, f"{where} {name}")) for name, path in asked]

    def measure(batch: Batch) -> list["pa.Array[Any]"]:
        none = [np.nan] * len(image_scores.COLUMNS)
        values = [none if image is None else image[_PIXELS] for image in batch.images]
        table = np.array(values, np.float64).reshape(-1, len(none))[batch.image_of]
        return [
            *(without_nan(column) for column in table.T),
            *(each for _, _, digest in found for each in _found(digest, batch)),
        ]

    rests_on = {"side_px": image_scores.SIDE_PX, "version": 1, **{name: digest for name, _, digest in found}}
    columns = [*image_scores.COLUMNS]
    for name, *_ in found:
        columns += [pa.field(name, pa.int32()), pa.field(f"{name}_share", pa.float32())]
    prepares: dict[str, Prepare] = {_PIXELS: image_scores.measure, **{digest: find for _, find, digest in found}}
    return Scorer(of.name, named(of.name, pa.schema(columns)), rests_on, measure, prepares)


def _found(digest: str, batch: Batch) -> list["pa.Array[Any]"]:
    """How many a detector has found on the image of each row, and their share of it; null where it refused it."""
    values: list[Found | None] = [None if image is None else image[digest] for image in batch.images]
    numbers = pa.array([None if value is None else value.number for value in values], pa.int32())
    shares = np.array([np.nan if value is None else value.share for value in values], np.float64)
    return [numbers.take(batch.image_of), without_nan(text_scores.rounded(shares)[batch.image_of])]


def noise(of: ScoreSettings, where: str) -> Scorer:
    """Loss and label noise of each pair, as a training run has written them."""
    path = storage.join(of.model.removeprefix("run:"), *LOSSES.split("/"))
    data = read(path, f"{where} model")
    try:
        table = pq.read_table(pa.BufferReader(data), columns=["key", "loss", "eps"])
        keys = table["key"].cast(pa.string()).combine_chunks()
        values = [table[name].cast(pa.float64()).to_numpy() for name in ("loss", "eps")]
    except pa.ArrowException as error:
        raise UsageError(f"{path}: no losses of a training ({str(error).splitlines()[0]})") from None

    def measure(batch: Batch) -> list["pa.Array[Any]"]:
        at: Any = pc.index_in(batch.rows["key"].combine_chunks(), value_set=keys)
        place, is_there = at.fill_null(0).to_numpy(zero_copy_only=False), at.is_valid().to_numpy(zero_copy_only=False)
        if not len(keys):
            return [pa.nulls(len(place), pa.float32())] * len(values)
        return [without_nan(np.where(is_there, text_scores.rounded(column[place]), np.nan)) for column in values]

    columns = named(of.name, pa.schema([("loss", pa.float32()), ("eps", pa.float32())]))
    return Scorer(of.name, columns, {"losses": hashlib.sha256(data).hexdigest()}, measure)


# A function of the user's own ----------------------------------------------------------------------------------------


def own(of: ScoreSettings, where: str, config_path: str) -> Scorer:
    """A function from columns of the side-car, which its parameters name, to one column or to several by name."""
    module_name, _, name = of.function.partition(":")
    module = own_rules.module(module_name, config_path, f"{where} function")
    function = getattr(own_rules.imported(module), name, None)
    if not inspect.isfunction(function):
        raise UsageError(f"{where} function: {module.path} has no function {name!r}")
    wanted = _parameters(function, of.settings, f"{module.path} line {function.__code__.co_firstlineno}: {name}")
    said = partial(_own_columns, of.name, function, wanted, of.settings, f"{module.path}: {name}")
    none = Batch(SAMPLE.empty_table(), np.zeros(0, np.int64))
    try:
        columns = pa.schema([(column, values.type) for column, values in said(none).items()])
    except AltalignError as error:
        raise UsageError(f"{error} (it was tried with no rows)") from error.__cause__
    rests_on = {"module": module.digest, "function": name, "settings": of.settings}
    return Scorer(of.name, columns, rests_on, lambda batch: _checked(said(batch), columns, f"{module.path}: {name}"))


def _parameters(function: Callable[..., Any], settings: Mapping[str, Any], where: str) -> list[str]:
    """The columns that a function asks for.

    Raises:
        UsageError: a parameter is neither a column nor a setting, or a setting is no parameter.
    """
    parameters = inspect.signature(function).parameters
    known = f"the columns are {', '.join(SAMPLE.names)}"
    for name, parameter in parameters.items():
        if name not in SAMPLE.names and name not in settings and parameter.default is parameter.empty:
            raise UsageError(f"{where}: nothing is known of its parameter {str(parameter)!r}; {known}")
    if surplus := [name for name in settings if name not in parameters or name in SAMPLE.names]:
        raise UsageError(f"{where}: it has no setting {surplus[0]!r}; leave it out of settings")
    return [name for name in parameters if name in SAMPLE.names]


def _own_columns(
    score: str, function: Callable[..., Any], wanted: list[str], settings: Mapping[str, Any], where: str, batch: Batch
) -> dict[str, "pa.Array[Any]"]:
    """What the function says of a batch: the values of each column by its name.

    Raises:
        AltalignError: it failed, or returned something else than columns of so many values.
    """
    try:
        found = function(**{name: batch.rows[name].combine_chunks() for name in wanted}, **settings)
    except Exception as error:
        raise AltalignError(f"{where}: {type(error).__name__}: {error}; put that right") from error
    columns = found if isinstance(found, dict) else {"": found}
    made = {f"{score}_{name}" if name else score: _narrow(column, where) for name, column in columns.items()}
    for column, values in made.items():
        if len(values) != len(batch.rows) or not any(is_such(values.type) for is_such in _OWN_TYPES):
            raise AltalignError(
                f"{where}: {column} is {len(values):,} of {values.type}; give {len(batch.rows):,} numbers, strings or "
                "booleans as a pyarrow array"
            )
    return made


def _narrow(column: Any, where: str) -> "pa.Array[Any]":
    """A column as scores have it: numbers of 32 bits; what is not finite is null.

    Raises:
        AltalignError: it is no array, or has an integer of more bits.
    """
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if not isinstance(column, pa.Array):
        raise AltalignError(f"{where}: it returned {type(column).__name__}; give a pyarrow array, or a dict of them")
    if pa.types.is_floating(column.type):
        finite: Any = pc.is_finite(column)
        return pc.if_else(finite, column, pa.scalar(None, column.type)).cast(pa.float32())
    if not pa.types.is_integer(column.type):
        return column
    try:
        return column.cast(pa.int32())
    except pa.ArrowInvalid as error:
        raise AltalignError(f"{where}: {error}; give integers of 32 bits, or floats") from None


def _checked(made: dict[str, "pa.Array[Any]"], columns: pa.Schema, where: str) -> list["pa.Array[Any]"]:
    if (found := {name: values.type for name, values in made.items()}) != dict(
        zip(columns.names, columns.types, strict=True)
    ):
        raise AltalignError(f"{where}: it returned {found}, and {columns} of no rows; give the same columns always")
    return [*made.values()]
