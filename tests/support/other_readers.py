"""Runs as other people's readers have them, each in the way that its documents show: a function each.

    python -m tests.support.other_readers READER FOLDER RUN…

prints, as JSON in its last line, the version of the reader's package and of each run the captions, what their pictures
are, and the error where the reader gave up. FOLDER is for what a reader writes.
"""

import importlib.metadata
import io
import json
import os
import sys
import tarfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from PIL import Image

ENDINGS = ("jpg", "png", "webp", "avif")
Sample = tuple[str, Any]  # a caption, and a picture: decoded, or its bytes, or why there is none
Reader = Callable[[Path, Path], Iterator[Sample]]
READERS: dict[str, tuple[str, Reader]] = {}  # package and function by the name of the reader


def reader(name: str, package: str) -> Callable[[Reader], Reader]:
    """Adds a function to the readers."""

    def add(function: Reader) -> Reader:
        READERS[name] = package, function
        return function

    return add


@reader("altalign", "altalign")
def by_altalign(run: Path, folder: Path) -> Iterator[Sample]:
    import altalign

    for image, caption in altalign.open(run).to_torch():
        yield caption, image


@reader("webdataset", "webdataset")
def by_webdataset(run: Path, folder: Path) -> Iterator[Sample]:
    import webdataset as wds

    for sample in wds.WebDataset(tars(run), shardshuffle=False).decode("pil"):
        yield sample["txt"], picture_of(sample)


def loader_of_open_clip(paths: Sequence[str], *, batch_size: int) -> Any:
    """Batches of images and texts as open_clip's evaluation reads them, each text as it is."""
    from open_clip_train.data import get_wds_dataset

    settings = SimpleNamespace(
        train_data=None,
        val_data="::".join(paths),
        val_num_samples=None,
        train_data_upsampling_factors=None,
        batch_size=batch_size,
        workers=0,
        world_size=1,
        seed=0,
    )
    return get_wds_dataset(settings, np.asarray, is_train=False, tokenizer=lambda text: [text]).dataloader


@reader("open_clip", "open_clip_torch")
def by_open_clip(run: Path, folder: Path) -> Iterator[Sample]:
    for images, texts in loader_of_open_clip(tars(run), batch_size=1):
        yield texts[0], images[0].numpy()


@reader("datasets", "datasets")
def by_datasets(run: Path, folder: Path) -> Iterator[Sample]:
    import datasets

    rows = datasets.load_dataset("webdataset", data_files={"train": tars(run)}, split="train", streaming=True)
    for row in rows:
        yield row["txt"], picture_of(row)


@reader("datasets, with features", "datasets")
def by_datasets_with_features(run: Path, folder: Path) -> Iterator[Sample]:
    """Features that name each format."""
    from datasets import Features, Image, Json, Value, load_dataset

    features = Features({ending: Image() for ending in ENDINGS} | {"txt": Value("string"), "json": Json()})
    features.update({name: Value("string") for name in ("__key__", "__url__")})
    files = {"train": tars(run)}
    for row in load_dataset("webdataset", data_files=files, split="train", streaming=True, features=features):
        yield row["txt"], picture_of(row)


@reader("torchdata", "torchdata")
def by_torchdata(run: Path, folder: Path) -> Iterator[Sample]:
    """Its nodes have no reader of tars: Python's, and torchvision's decoder."""
    import torch
    from torchdata.nodes import IterableWrapper, Loader, Mapper
    from torchvision.io import decode_image

    def decoded(sample: dict[str, bytes]) -> Sample:
        data = torch.frombuffer(bytearray(picture_of(sample)), dtype=torch.uint8)
        try:
            return sample["txt"].decode(), decode_image(data).permute(1, 2, 0).numpy()
        except RuntimeError as error:
            return sample["txt"].decode(), error

    yield from Loader(Mapper(IterableWrapper(samples_of(run)), decoded))


@reader("Megatron Energon", "megatron-energon")
def by_energon(run: Path, folder: Path) -> Iterator[Sample]:
    from megatron import energon
    from megatron.energon.flavors.webdataset.prepare import WebdatasetPreparator

    for tar in tars(run):
        (folder / Path(tar).name).symlink_to(tar)
    names = [Path(tar).name for tar in tars(run)]
    WebdatasetPreparator.prepare_dataset(folder, names, split_parts_ratio=[("train", 1.0)], workers=1)
    (folder / ".nv-meta" / "dataset.yaml").write_text(
        "sample_type: {__module__: megatron.energon, __class__: CaptioningSample}\n"
        f"field_map: {{image: '{','.join(ENDINGS)}', caption: txt}}\n",
        encoding="utf-8",
    )
    encoder = type("Encoder", (energon.DefaultTaskEncoder,), {"decoder": energon.SampleDecoder(image_decode="pil")})
    dataset = energon.get_train_dataset(
        folder,
        worker_config=energon.WorkerConfig(rank=0, world_size=1, num_workers=0),
        task_encoder=encoder(),
        batch_size=None,
        repeat=False,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
    )
    for sample in energon.get_loader(dataset):
        yield sample.caption, sample.image


@reader("SPDL", "spdl")
def by_spdl(run: Path, folder: Path) -> Iterator[Sample]:
    """Its own decoder wants libraries of FFmpeg, which no wheel brings: Pillow."""
    from spdl.io import iter_tarfile
    from spdl.pipeline import PipelineBuilder

    def samples(tar: str) -> Iterator[dict[str, bytes]]:
        sample: dict[str, bytes] = {}
        for name, data in iter_tarfile(Path(tar).read_bytes()):
            sample[name.rpartition(".")[2]] = bytes(data)
            if name.endswith(".json"):  # the last of a sample
                yield sample
                sample = {}

    def opened(sample: dict[str, bytes]) -> Sample:
        return sample["txt"].decode(), Image.open(io.BytesIO(picture_of(sample)))

    builder = PipelineBuilder().add_source(tars(run)).pipe(samples).pipe(opened).add_sink(2)
    with (pipeline := builder.build(num_threads=1)).auto_stop():
        yield from pipeline.get_iterator()


@reader("MosaicML Streaming", "mosaicml-streaming")
def by_streaming(run: Path, folder: Path) -> Iterator[Sample]:
    """It reads files of its own alone: the samples are copied into them."""
    from streaming import MDSWriter, StreamingDataset

    with MDSWriter(out=str(folder), columns={"image": "bytes", "caption": "str"}) as writer:
        for sample in samples_of(run):
            writer.write({"image": picture_of(sample), "caption": sample["txt"].decode()})
    for sample in StreamingDataset(local=str(folder), shuffle=False, batch_size=1):
        yield sample["caption"], Image.open(io.BytesIO(sample["image"]))


@reader("Daft, tars", "daft")
def by_daft(run: Path, folder: Path) -> Iterator[Sample]:
    """One at a time: of several at once it never came to an end on two cores."""
    import daft
    from daft.functions import decode_image_file

    for tar in tars(run):
        frame = daft.read_webdataset(tar)
        pictures = [decode_image_file(frame[name], mode="RGB") for name in ENDINGS if name in frame.column_names]
        for row in frame.select("txt", *pictures).to_pylist():
            yield row["txt"], picture_of(row)


@reader("Daft, side-cars", "daft")
def by_daft_in_sidecars(run: Path, folder: Path) -> Iterator[Sample]:
    """Its `File` is a range of a tar. Without `mode` its decoder breaks off at a gray image of 16 bits."""
    import daft
    from daft.datatype import MediaType
    from daft.functions import decode_image_file

    @daft.func(return_dtype=daft.DataType.file(MediaType.image()))
    def image(sidecar: str, position: int, size: int) -> daft.File:
        tar = sidecar.removesuffix("parquet") + "tar"
        return daft.File(tar, media_type=MediaType.image(), position=position, size=size)

    frame = daft.read_parquet(f"{run}/shards/*.parquet", file_path_column="sidecar")
    file = image(frame["sidecar"], frame["tar_offset"], frame["tar_bytes"])
    decoded = decode_image_file(file, mode="RGB", on_error="null").alias("image")
    for row in frame.select("caption", decoded).to_pylist():
        yield row["caption"], row["image"]


@reader("Lance", "pylance")
def by_lance(run: Path, folder: Path) -> Iterator[Sample]:
    """A data set of its own whose blobs are ranges of the tars."""
    import lance
    import pyarrow as pa
    import pyarrow.parquet as pq

    parts = []
    for path in sorted((run / "shards").glob("*.parquet")):
        rows, tar = pq.read_table(path), path.with_suffix(".tar").as_uri()
        places = zip(rows["tar_offset"].to_pylist(), rows["tar_bytes"].to_pylist(), strict=True)
        images = lance.blob_array([lance.Blob.from_uri(tar, offset, size) for offset, size in places])
        parts.append(rows.select(["caption"]).append_column(lance.blob_field("image"), images))
    dataset = lance.write_dataset(
        pa.concat_tables(parts),
        folder / "pairs.lance",
        data_storage_version="2.2",
        allow_external_blob_outside_bases=True,
    )
    captions = dataset.to_table(columns=["caption"])["caption"].to_pylist()
    for caption, blob in zip(captions, dataset.take_blobs("image", indices=range(len(captions))), strict=True):
        yield caption, Image.open(blob)


@reader("DuckDB", "duckdb")
def by_duckdb(run: Path, folder: Path) -> Iterator[Sample]:
    import duckdb

    for (caption,) in duckdb.sql(f"select caption from '{run}/shards/*.parquet'").fetchall():
        yield caption, None


@reader("Polars", "polars")
def by_polars(run: Path, folder: Path) -> Iterator[Sample]:
    import polars

    for caption in polars.read_parquet(run / "shards" / "*.parquet")["caption"]:
        yield caption, None


def tars(run: Path) -> list[str]:
    return [str(path) for path in sorted((run / "shards").glob("*.tar"))]


def samples_of(run: Path) -> Iterator[dict[str, bytes]]:
    """Every sample by Python's own reader of tars: bytes by ending."""
    for path in tars(run):
        with tarfile.open(path) as tar:
            files = ((member.name.rpartition(".")[2], tar.extractfile(member)) for member in tar)
            for sample in zip(*[files] * 3, strict=True):
                yield {ending: file.read() for ending, file in sample if file}


def picture_of(sample: dict[str, Any]) -> Any:
    """The picture of a sample, which stands under its format."""
    return next(sample[ending] for ending in ENDINGS if sample.get(ending) is not None)


def described(picture: Any) -> Any:
    """Width, height, and the values near the upper left and the lower right corner; of what is no picture its type."""
    if isinstance(picture, Image.Image):
        picture = np.asarray(picture)
    if not isinstance(picture, np.ndarray):
        return type(picture).__name__
    height, width = picture.shape[:2]
    return [width, height, *(np.ravel(picture[corner, corner]).tolist() for corner in (3, -4))]


def main(name: str, folder: str, *runs: str) -> None:
    """Print what a reader gives."""
    package, function = READERS[name]
    found = []
    for run in runs:
        (own := Path(folder) / Path(run).name).mkdir()
        said: dict[str, Any] = {"samples": [], "error": None}
        try:
            for caption, picture in function(Path(run), own):
                said["samples"].append([caption, described(picture)])
        except Exception as error:  # of any reader
            said["error"] = f"{type(error).__name__}: {error}"
        found.append(said)
    sys.stdout.write(json.dumps([importlib.metadata.version(package), *found]) + "\n")


if __name__ == "__main__":
    os.environ["HF_HUB_OFFLINE"] = "1"
    main(*sys.argv[1:])
