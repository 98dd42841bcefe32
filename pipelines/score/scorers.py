"""What a scorer is, and those without a model: measures of captions and of pixels, and functions of a user's own.

A detector, of faces or boxes of text, is an ONNX file of the user's: an image at a time, on one thread.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from altalign import storage
from altalign.data.schema import RULES_VERSION, SAMPLE
from altalign.errors import AltalignError, UsageError
from altalign.filters import detections, image_scores, text_scores
from altalign.filters.detections import Detector, Found
from altalign.models import onnx
from altalign.rules import own as own_rules
from altalign.settings.score import ScoreSettings
from altalign.storage import parquet

Pixels = npt.NDArray[np.uint8]  # uint8[height, width, 3], RGB, upright and on white

_PIXELS = "pixels measured"
LOSSES = "noise/losses.parquet"  # of a training run: key, loss, eps
_OWN_TYPES = (pa.types.is_floating, pa.types.is_integer, pa.types.is_string, pa.types.is_boolean)


@dataclass
class Batch:
    """Some samples of a shard, in order; those of an image are together."""

    rows: pa.Table  # columns of `SAMPLE`
    image_of: npt.NDArray[np.int64]  # the number of each row's image, int64[n]
    images: Sequence[Mapping[str, Any] | None] = ()  # prepared, by preparations; None of one that cannot be decoded
    made: dict[Any, Any] = field(default_factory=dict)  # what scorers make for one another, such as embeddings

    @property
    def captions(self) -> pa.StringArray:
        """The captions, without nulls."""
        return parquet.strings(self.rows, "caption")


@dataclass(frozen=True)
class Scorer:
    """One score."""

    name: str  # as the settings have it
    columns: pa.Schema
    rests_on: Mapping[str, Any]  # what values depend on beside the samples: settings, digests of files, versions
    measure: Callable[[Batch], Sequence["pa.Array[Any]"]]  # a column for each of `columns`, with nulls for no value
    prepares: Mapping[str, Callable[[Pixels], Any]] = field(default_factory=dict)  # once for all scorers, by name
    reads: Sequence[str] | None = None  # columns of `SAMPLE`; None: any
    is_of_dropped: bool = False  # whether dropped images that galleries show are measured too


def read(path: str, where: str) -> bytes:
    """A file that the settings name, whole."""
    try:
        return storage.read_bytes(path)
    except FileNotFoundError:
        raise UsageError(f"{where}: {path}: no such file; give a path relative to the working directory") from None
    except OSError as error:
        raise UsageError(f"{where}: {path}: cannot be read ({error.strerror or error})") from None


def _named(name: str, columns: Iterable["pa.Field[Any]"]) -> pa.Schema:
    """The columns as files have them: `NAME_COLUMN`."""
    return pa.schema([pa.field(f"{name}_{each.name}", each.type) for each in columns])


def without_nan(values: npt.NDArray[np.floating]) -> "pa.Array[Any]":
    """Values as float32, those that are not finite as null."""
    return pa.array(values.astype(np.float32), mask=~np.isfinite(values))


def text(settings: ScoreSettings, where: str) -> Scorer:
    """Characters, digits, capitals, repeated and listed words of captions."""
    lines, digest = [], ""
    if settings.profanity:
        data = read(settings.profanity, f"{where} profanity")
        digest = hashlib.sha256(data).hexdigest()
        try:
            lines = data.decode("utf-8-sig").splitlines()
        except UnicodeDecodeError as error:
            raise UsageError(f"{settings.profanity}: not UTF-8 (byte {error.start}); save it as UTF-8") from None
    listed = text_scores.listed_hashes(lines)
    if settings.profanity and not len(listed):
        raise UsageError(f"{settings.profanity}: no word is in it; give words, one a line")

    def measure(batch: Batch) -> list["pa.Array[Any]"]:
        return [column.combine_chunks() for column in text_scores.measure(batch.captions, listed).columns]

    rests_on = {"rules": RULES_VERSION, "profanity": digest}
    return Scorer(settings.name, _named(settings.name, text_scores.COLUMNS), rests_on, measure, reads=("caption",))


def noise(settings: ScoreSettings, where: str) -> Scorer:
    """Loss and label noise of each pair, as a training run has written them."""
    path = storage.join(settings.model.removeprefix("run:"), *LOSSES.split("/"))
    data = read(path, f"{where} model")
    try:
        table = pq.read_table(pa.BufferReader(data), columns=["key", "loss", "eps"])
        keys = table["key"].cast(pa.string()).combine_chunks()
        values = [table[name].cast(pa.float64()).to_numpy() for name in ("loss", "eps")]
    except pa.ArrowException as error:
        raise UsageError(f"{path}: no losses of a training ({str(error).splitlines()[0]})") from None

    def measure(batch: Batch) -> list["pa.Array[Any]"]:
        at: Any = pc.index_in(batch.rows["key"].combine_chunks(), value_set=keys)
        place, is_known = at.fill_null(0).to_numpy(zero_copy_only=False), at.is_valid().to_numpy(zero_copy_only=False)
        if not len(keys):
            return [pa.nulls(len(place), pa.float32())] * len(values)
        return [without_nan(np.where(is_known, text_scores.rounded(column[place]), np.nan)) for column in values]

    columns = _named(settings.name, [pa.field(name, pa.float32()) for name in ("loss", "eps")])
    return Scorer(settings.name, columns, {"losses": hashlib.sha256(data).hexdigest()}, measure)


def image(settings: ScoreSettings, where: str) -> Scorer:
    """Sharpness, entropy, flatness and colourfulness of images; faces and boxes of text by models of the user's."""
    models = [("faces", settings.faces), ("text_boxes", settings.text_boxes)]
    detectors = [(name, *_detector(path, f"{where} {name}")) for name, path in models if path]

    def measure(batch: Batch) -> list["pa.Array[Any]"]:
        none = [np.nan] * len(image_scores.COLUMNS)
        values = [none if image is None else image[_PIXELS] for image in batch.images]
        table = np.array(values, np.float64).reshape(-1, len(none))[batch.image_of]
        columns = [without_nan(column) for column in table.T]
        for _, _, digest in detectors:  # how many it has found, and their share of the image; null where it refused it
            hits: list[Found | None] = [None if image is None else image[digest] for image in batch.images]
            numbers = pa.array([None if each is None else each.number for each in hits], pa.int32())
            shares = np.array([np.nan if each is None else each.share for each in hits], np.float64)
            columns += [numbers.take(batch.image_of), without_nan(text_scores.rounded(shares)[batch.image_of])]
        return columns

    rests_on = {"side_px": image_scores.SIDE_PX, "version": 1, **{name: digest for name, _, digest in detectors}}
    columns = [*image_scores.COLUMNS]
    for name, *_ in detectors:
        columns += [pa.field(name, pa.int32()), pa.field(f"{name}_share", pa.float32())]
    prepares = {_PIXELS: image_scores.measure, **{digest: detect for _, detect, digest in detectors}}
    return Scorer(settings.name, _named(settings.name, columns), rests_on, measure, prepares)


def _detector(path: str, where: str) -> tuple[Callable[[Pixels], Found | None], str]:
    """What finds things on an image, None where the model refuses it; and the digest of all that it rests on."""
    graph = onnx.image_graph(path, f'{where} = "{path}"', Detector)
    outputs = graph.outputs()
    if unknown := next((name for name in graph.input.outputs if name not in outputs), None):
        raise UsageError(f"{graph.toml}: the model has no output {unknown}, it has {', '.join(outputs)}")

    def detect(pixels: Pixels) -> Found:
        return detections.detected(graph.run(graph.prepare(pixels), graph.input.outputs or outputs[:1]), graph.input)

    def detect_or_none(pixels: Pixels) -> Found | None:
        with suppress(*onnx.errors()):
            return detect(pixels)
        return None

    graph.tried(detect)
    return detect_or_none, graph.digest


def own(settings: ScoreSettings, where: str, config_path: str) -> Scorer:
    """A function from columns of the side-car, which its parameters name, to one column or to several by name."""
    module_name, _, name = settings.function.partition(":")
    module, given = own_rules.module(module_name, config_path, f"{where} function"), settings.settings
    function, reads = own_rules.function_of(module, name, SAMPLE.names, given, f"{where} function")
    in_module = f"{module.path}: {name}"

    def made(rows: pa.Table) -> dict[str, "pa.Array[Any]"]:
        try:
            returned = function(**{each: rows[each].combine_chunks() for each in reads}, **given)
        except Exception as error:
            raise AltalignError(f"{in_module}: {type(error).__name__}: {error}; put that right") from error
        result = dict[str, "pa.Array[Any]"]()
        for ending, column in (returned if isinstance(returned, dict) else {"": returned}).items():
            values, column_name = _narrow(column, in_module), f"{settings.name}_{ending}" if ending else settings.name
            if len(values) != len(rows) or not any(is_such(values.type) for is_such in _OWN_TYPES):
                raise AltalignError(
                    f"{in_module}: {column_name} is {len(values):,} of {values.type}; give {len(rows):,} numbers, "
                    "strings or booleans as a pyarrow array"
                )
            result[column_name] = values
        return result

    try:
        columns = {column: values.type for column, values in made(SAMPLE.empty_table()).items()}
    except AltalignError as error:
        raise UsageError(f"{error} (it was tried with no rows)") from error.__cause__

    def measure(batch: Batch) -> list["pa.Array[Any]"]:
        of_batch = made(batch.rows)
        if (types := {column: values.type for column, values in of_batch.items()}) != columns:
            what = f"it returned {types}, and {columns} of no rows"
            raise AltalignError(f"{in_module}: {what}; give the same columns always")
        return [*of_batch.values()]

    rests_on = {"module": module.digest, "function": name, "settings": given}
    return Scorer(settings.name, pa.schema([*columns.items()]), rests_on, measure)


def _narrow(column: Any, where: str) -> "pa.Array[Any]":
    """A column as scores have it: numbers of 32 bits; what is not finite is null."""
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
