"""Arrow IPC, as Hugging Face's `save_to_disk` leaves it: streams in a folder, which `state.json` lists.

A file is mapped into memory, so that a record batch of any size costs what is read of it.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa

from altalign import storage
from altalign.errors import UsageError
from altalign.pipelines.read.stretches import readable
from altalign.terminal import shown

_MAGIC = b"ARROW1"  # of the form with a footer; streams have none
_END = b"\xff\xff\xff\xff\0\0\0\0"  # of a stream
_TIMES_AT_MOST = 1_000  # its file, of a compressed buffer: it says how long it is, and may lie
_ERRORS = (pa.ArrowNotImplementedError, pa.ArrowTypeError, pa.ArrowKeyError)  # and those of `readable`


@contextmanager
def reading(path: str) -> Iterator[tuple[pa.Schema, Iterator[pa.RecordBatch]]]:
    """The schema and the record batches of an Arrow file."""
    with readable(path, "Arrow"), pa.memory_map(storage.mappable(path)) as file:
        try:
            if file.read(len(_MAGIC)) == _MAGIC:
                of_file = pa.ipc.open_file(file)
                yield of_file.schema, map(of_file.get_batch, range(of_file.num_record_batches))
                return
            file.seek(max(0, file.size() - len(_END)))
            if file.read() != _END:
                raise pa.ArrowInvalid("it ends without the mark of its end, as one that is cut does")
            file.seek(0)
            stream = pa.ipc.open_stream(file)
            yield stream.schema, iter(stream)
        except _ERRORS as error:
            raise pa.ArrowInvalid(str(error)) from error
        except pa.ArrowMemoryError as error:
            claimed = re.search(r"size (\d+)", str(error))
            if claimed is None or int(claimed[1]) < _TIMES_AT_MOST * file.size():
                raise  # the machine's memory
            raise pa.ArrowInvalid(f"a buffer that says it has {int(claimed[1]):,} bytes") from error


def listed(folder: str) -> Sequence[str]:
    """The files of a data set that was saved to a folder, in order; of any other folder, the folder itself."""
    splits = storage.read_json(storage.join(folder, "dataset_dict.json")).get("splits")
    if isinstance(splits, list) and splits:
        names = ", ".join(shown(str(name)) for name in splits)
        one = f"{folder.rstrip('/')}/{splits[0]}"
        raise UsageError(f"{folder}: a data set of splits ({names}); name one, such as {one}")
    state = storage.join(folder, "state.json")
    entries = storage.read_json(state).get("_data_files")
    if not isinstance(entries, list):
        return [folder]
    names = [entry.get("filename") if isinstance(entry, dict) else None for entry in entries]
    if wrong := [name for name in names if not isinstance(name, str) or "/" in name]:
        raise UsageError(f"{state}: {wrong[0]!r} is no name of a file; save the data set anew")
    return [storage.join(folder, str(name)) for name in names]
