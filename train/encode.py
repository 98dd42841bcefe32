"""`altalign encode RUN INPUT OUT`: embeddings of images and captions, as Parquet.

    OUT/images.parquet      image (its number), name, embedding
    OUT/captions.parquet    image (the number of its image, null where there is none), caption, embedding
    OUT/encode.json         the run, its checkpoint and what it was trained on; how many; what was left out

Embeddings are float32 and of length 1: a product of two is the cosine.
"""

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from altalign import storage, terminal
from altalign.data.shards import IMAGE_NAMES
from altalign.errors import UsageError
from altalign.eval.image_sources import text_lines
from altalign.eval.sets import CaptionedImage, captioned_set
from altalign.train.data.augment import UndecodableError
from altalign.train.exchange import encoders


def encode(
    run: str, given: str, out: str, *, step: int | None, batch: int, image_column: str, caption_column: str
) -> int:
    """Write the embeddings of an input, a batch at a time.

    Raises UsageError: the input is nothing that is read here, or `out` is there; UnreadableError: the input is damaged,
    or nothing of it is an image or a caption.
    """
    if storage.kind(out) != "missing":
        raise UsageError(f"{out}: it is there already; give a new folder")
    trained = encoders.trained(run, step=step)
    inputs, count = _input(given, image_column, caption_column)
    rows, left_out, writers = {"images": 0, "captions": 0}, list[str](), dict[str, Any]()
    model = encoders.of_trained(trained, "auto")
    with ExitStack() as stack, torch.inference_mode():
        for name, text in (("images", "name"), ("captions", "caption")):
            vector = pa.list_(pa.float32(), trained.model.width)
            schema = pa.schema([("image", pa.int64()), (text, pa.string()), ("embedding", vector)])
            file = stack.enter_context(storage.write(storage.join(out, f"{name}.parquet")))
            writers[name] = stack.enter_context(pq.ParquetWriter(file, schema))

        def write(name: str, image: Sequence[int | None], text: Sequence[str], vectors: torch.Tensor) -> None:
            schema = writers[name].schema
            numbers = pa.array(vectors.float().cpu().numpy().reshape(-1))
            embeddings = pa.FixedSizeListArray.from_arrays(numbers, type=schema.field("embedding").type)
            columns = [pa.array(image, pa.int64()), pa.array(text, pa.string()), embeddings]
            writers[name].write_table(pa.Table.from_arrays(columns, schema=schema))
            rows[name] += len(text)

        advance = stack.enter_context(terminal.progress_bar("encoding", count, "inputs"))
        given_images = iter(inputs)
        while some := list(islice(given_images, batch)):
            pixels, names, captions, first = list[torch.Tensor](), list[str](), list[str](), rows["images"]
            owners: list[int | None] = []  # of captions: the number of the image, if there is one
            for one in some:
                if one.image:
                    try:
                        pixels.append(model.decode(one.image))
                    except UndecodableError:
                        left_out.append(one.name)
                        continue
                    names.append(one.name)
                captions += one.captions
                owners += [first + len(names) - 1 if one.image else None] * len(one.captions)
            if pixels:
                write("images", range(first, first + len(names)), names, model.encode_image(torch.stack(pixels)))
            for begin in range(0, len(captions), len(some)):
                part = slice(begin, begin + len(some))
                write("captions", owners[part], captions[part], model.encode_text(captions[part]))
            advance(len(some))
    facts = {"run": run, "step": trained.step, "model_sha256": trained.digest, **rows, "undecodable": left_out}
    storage.write_json(storage.join(out, "encode.json"), facts)
    lost = f"; {len(left_out):,} images cannot be decoded: see encode.json" if left_out else ""
    terminal.stdout().print(
        f"{rows['images']:,} images and {rows['captions']:,} captions in {terminal.shown(out)}{lost}", soft_wrap=True
    )
    return 0


def _input(given: str, image_column: str, caption_column: str) -> tuple[Iterable[CaptionedImage], int]:
    """What a path stands for, a run, a folder of images, tars, tables, or a text file of captions; how many it has."""
    suffix = Path(given).suffix.lower()
    if storage.kind(given) == "folder" and not storage.exists(storage.join(given, "manifest.json")):
        images = sorted(path for path in Path(given).rglob("*") if path.suffix.lower() in IMAGE_NAMES)
        if not images:
            raise UsageError(f"{given}: neither a finished run nor a folder with images in it; give another")
        return (CaptionedImage(path.read_bytes(), [], str(path)) for path in images), len(images)
    if storage.kind(given) == "folder":
        inputs = captioned_set([given], "folder")
    elif suffix == ".tar":
        inputs = captioned_set([given], "webdataset")
    elif suffix == ".parquet":
        inputs = captioned_set([given], "parquet", image_column=image_column, caption_column=caption_column)
    elif suffix == ".txt" and storage.kind(given) == "file":
        inputs = [CaptionedImage(b"", [line]) for line in text_lines(given) if line.strip()]
    else:
        raise UsageError(
            f"{given}: no input of `altalign encode`; give a run folder, a folder of images, a path or glob of *.tar "
            "or *.parquet, or a .txt with a caption a line"
        )
    return inputs, len(inputs)
