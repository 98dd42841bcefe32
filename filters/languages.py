"""Models of languages, and a veto: a label whose language is written in another script is not believed."""

import struct
import tomllib
from functools import cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from numba import njit

from altalign.filters import unicode_data
from altalign.filters.bits import Bytes, Longs, address_of
from altalign.filters.unicode_data import CODE_POINTS, LETTER, UnicodeTable
from altalign.filters.utf8 import decode, entry_of
from altalign.filters.words import text_buffers

NONE = "none"  # no letter has a script of its own


@cache
def table() -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint8], tuple[str, ...]]:
    """Runs of code points of one script: where each begins (rising from 0), the number of its script; and the names.

    Number 0 is no script of its own: Common, Inherited, unassigned.
    """
    with np.load(Path(__file__).with_name("scripts_16.npz")) as stored:
        return stored["starts"], stored["scripts"], tuple(stored["names"].tolist())


@cache
def _of_points() -> npt.NDArray[np.uint8]:
    """The number of each code point's script."""
    starts, numbers, _ = table()
    return np.repeat(numbers, np.diff(np.append(starts, CODE_POINTS).astype(np.int64)))


def main_scripts(captions: pa.StringArray) -> "pa.DictionaryArray[Any, Any]":
    """The script of most letters of n captions ("Latin", "Han"), or NONE; of a tie, the name that sorts first."""
    _, _, names = table()
    data, offsets = text_buffers(captions)
    numbers_of_rows = np.zeros(len(captions), np.uint8)
    _fill_main_scripts(data, offsets, unicode_data.table(), _of_points(), len(names), numbers_of_rows)
    numbers: Any = pa.array(numbers_of_rows)
    return pa.DictionaryArray.from_arrays(numbers, pa.array([NONE, *names[1:]], pa.string()))


@cache
def _scripts() -> dict[str, set[str]]:
    """The scripts of each language (`languages.toml`)."""
    scripts = dict[str, set[str]]()
    for script, codes in tomllib.loads(Path(__file__).with_name("languages.toml").read_text(encoding="utf-8")).items():
        for code in codes.split():
            scripts.setdefault(code, set()).add(script)
    return scripts


def is_vetoed(captions: pa.StringArray, labels: "pa.Array[Any]") -> npt.NDArray[np.bool_]:
    """Whether the main script of each of n captions is one that its language is not written in, bool[n].

    Captions without letters of a script, and languages that are not listed, are not vetoed.
    """
    scripts, written = main_scripts(captions), _scripts()
    known: Any = pc.if_else(labels.is_valid(), labels, pa.scalar(""))
    languages = known.dictionary_encode()
    names, codes = cast(Any, scripts.dictionary).to_pylist(), languages.dictionary.to_pylist()
    is_other = np.array(
        [[name != NONE and name not in written.get(code, {name}) for name in names] for code in codes], bool
    ).reshape(len(codes), len(names))
    return is_other[languages.indices.to_numpy(), scripts.indices.to_numpy()]


@njit(nogil=True, cache=True)
def _fill_main_scripts(
    data: Bytes, offsets: Longs, table: UnicodeTable, script_of: Bytes, scripts: int, main: Bytes
) -> None:
    """The number of the script of most letters of each row, uint8[n]; 0: of none. `script_of` has it of code points."""
    text, blocks, entries = address_of(data), address_of(table.blocks), address_of(table.entries)
    letters = np.zeros(scripts, np.int64)
    for row in range(len(offsets) - 1):
        letters[:] = 0
        at, end = offsets[row], offsets[row + 1]
        while at < end:
            point, size = decode(text, at, end)
            at += size
            if entry_of(point, blocks, entries) & LETTER:
                letters[script_of[point]] += 1
        letters[0] = 0  # no script of its own
        main[row] = letters.argmax()


# fastText's files -----------------------------------------------------------------------------------------------------

_MAGIC, _SUPERVISED = 793712314, 3
_ARGUMENTS_END = 64  # magic, version, twelve integers, a double
_CENTROIDS_BYTES = 256 * 4  # of each dimension


class ModelFileError(ValueError):
    """The bytes are no whole classifier; the words say why."""


def check_model(data: bytes) -> None:
    """Refuse by ModelFileError what is no whole classifier that fastText saved (.bin, or quantized .ftz).

    fastText itself reads on where a file has ended, and predicts from what happens to be in memory. So a file's length
    is compared with what its headers say: those of fastText 0.9 (src/args.cc, dictionary.cc, densematrix.cc,
    quantmatrix.cc, productquantizer.cc), little-endian.
    """
    if not data.startswith(struct.pack("<i", _MAGIC)):
        raise ModelFileError("its first bytes are not those of fastText")
    try:
        if struct.unpack_from("<2i12i", data)[2 + 7] != _SUPERVISED:
            raise ModelFileError("word vectors, not a classifier")
        entries, _, _, _, pruned = struct.unpack_from("<3i2q", data, _ARGUMENTS_END)
        at = _ARGUMENTS_END + struct.calcsize("<3i2q")
        for _ in range(entries):  # a word, a zero byte, its count and kind
            at = data.index(b"\0", at) + 10
        at += 8 * max(0, pruned)
        is_quantized = bool(data[at])
        at = _end_of_matrix(data, at + 1, is_quantized=is_quantized)
        end = _end_of_matrix(data, at + 1, is_quantized=is_quantized and bool(data[at]))
    except (struct.error, ValueError, IndexError) as error:
        raise error if isinstance(error, ModelFileError) else ModelFileError("its headers are cut or damaged") from None
    if end != len(data):
        raise ModelFileError(f"it has {len(data):,} bytes, and its headers say {end:,}: it is cut or damaged")


def _end_of_matrix(data: bytes, at: int, *, is_quantized: bool) -> int:
    if not is_quantized:
        rows, columns = struct.unpack_from("<2q", data, at)
        return at + 16 + 4 * rows * columns
    has_norms, rows, columns, codes = struct.unpack_from("<?2qi", data, at)
    at += 21 + codes + 16 + columns * _CENTROIDS_BYTES
    return at + rows + 16 + _CENTROIDS_BYTES if has_norms else at
