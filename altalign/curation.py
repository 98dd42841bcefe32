"""CurateConfig: every threshold of a curation and its one default.

Numbers are of the ALIGN paper (section 3 and appendix A) unless marked "ours".
"""

from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from altalign import __version__
from altalign.settings import ReadBy, Settings

Extract, Tables, Judge, Fetch, Decontaminate, Write = map(ReadBy, ("extract", "tables", "judge", "fetch", "decontaminate", "write"))

LARGEST = 2**63 - 1  # what TOML, Arrow and Parquet hold
Whole = Annotated[int, Field(ge=0, le=LARGEST)]
Positive = Annotated[int, Field(ge=1, le=LARGEST)]
EMBEDDERS = {"dct": 0, "phash": 0, "open_clip": 2, "timm": 2, "onnx": 1, "run": 1}  # names after the colon
Port = Annotated[int, Field(ge=1, le=65_535)]


class RunSettings(Settings):
    """Where a run is written."""

    folder: Annotated[str, Field(min_length=1)] = "runs/demo"
    keep_work: bool = True


class InputSettings(Settings):
    """One input: files of one kind. Order of inputs, then of sorted paths, then of rows is the input order."""

    name: str = ""  # the pairs' `source`; the kind where it is empty
    kind: Literal["warc", "wat", "table", "webdataset"] = "warc"
    paths: Annotated[list[str], Field(min_length=1)]
    url_column: str = "url"
    caption_column: str = "caption"
    image_column: str = ""
    page_url_column: str = ""
    decode_entities: bool = False
    skip_unreadable: bool = False

    @property
    def source(self) -> str:
        """What the pairs of this input carry as `source`."""
        return self.name or self.kind


class TextSettings(Settings):
    """Text-based filtering (section 3)."""

    words_at_least: Annotated[Whole, Judge] = 3
    words_at_most: Annotated[Whole, Judge] = 20
    images_per_text_at_most: Annotated[Whole, Tables] = 10
    vocabulary_size: Annotated[Positive, Tables] = 100_000_000

    @model_validator(mode="after")
    def _range_is_not_empty(self) -> Self:
        if self.words_at_least > self.words_at_most:
            raise ValueError(f"words_at_least ({self.words_at_least}) is above words_at_most ({self.words_at_most}): nothing would be kept")
        return self


class NsfwSettings(Settings):
    """Removal of pornographic images (section 3; the paper names neither classifier nor threshold)."""

    model: str = ""
    drop_at_or_above: Annotated[float, Field(ge=0, le=1)] = 0.5


class ImageSettings(Settings):
    """Image-based filtering (section 3)."""

    short_side_above_px: Annotated[Whole, Fetch] = 200
    aspect_ratio_below: Annotated[float, Field(gt=1), Fetch] = 3.0
    texts_per_image_at_most: Annotated[Whole, Tables] = 1000
    pixels_at_most: Annotated[Positive, Fetch] = 178_956_970  # ours: Pillow's own limit against decompression bombs
    blocked_hashes: Annotated[list[str], Fetch] = Field(default_factory=list)
    nsfw: Annotated[NsfwSettings, Fetch] = NsfwSettings()


class FetchSettings(Settings):
    """Where images come from (ours; the paper does not say)."""

    source: Annotated[Literal["archive", "web"], Fetch] = "archive"
    timeout_s: Annotated[float, Field(gt=0), Fetch] = 10.0
    retries: Annotated[Whole, Fetch] = 2
    bytes_at_most: Annotated[Positive, Fetch] = 20_000_000
    threads: Positive = 64
    honour_opt_out: Annotated[bool, Fetch] = True
    honour_robots: Annotated[bool, Fetch] = True
    connections_per_host: Positive = 8
    requests_per_host_s: Annotated[float, Field(gt=0)] = 20.0
    blocked_domains: Annotated[list[str], Fetch] = Field(default_factory=list)
    ports: Annotated[list[Port], Fetch] = Field(default_factory=lambda: [80, 443])
    allow_addresses: Annotated[list[str], Fetch] = Field(default_factory=list)
    user_agent: Annotated[str, Fetch, Field(min_length=1)] = "altalign/VERSION (+URL of the project)"

    @property
    def user_agent_sent(self) -> str:
        """`user_agent` as servers see it: VERSION is ours, and the address that nobody has filled in is left out.

        Filled in here and not in the setting, so that a new version of altalign changes no settings and refuses no run.
        """
        return self.user_agent.replace("VERSION", __version__).replace(" (+URL of the project)", "")


class TestSet(Settings):
    """A named set of test images."""

    name: str
    path: str
    image_column: str = "image"


def _form(entry: Any) -> str:
    return "(table)" if isinstance(entry, (dict, TestSet)) else "(path)"


TestSetEntry = Annotated[Annotated[str, Tag("(path)")] | Annotated[TestSet, Tag("(table)")], Discriminator(_form)]


class DecontaminateSettings(Settings):
    """Removal of near-duplicates of test images (appendix A)."""

    test_sets: list[TestSetEntry] = Field(default_factory=list)
    embedder: str = "dct"
    clusters: Positive = 4096
    nearest_clusters: Positive = 10
    bucket_clusters: Positive = 3
    require_bucket: bool = True
    similarity_above: Annotated[float, Field(ge=-1, le=1)] = 0.975
    mirrored: bool = False
    calibration: str = ""

    @field_validator("embedder")
    @classmethod
    def _embedder_is_known(cls, value: str) -> str:
        kind = value.split(":")[0]
        names = value.split(":", maxsplit=EMBEDDERS.get(kind, 0))[1:]
        if len(names) != EMBEDDERS.get(kind) or not all(names) or (not names and value != kind):
            raise ValueError(
                f'"{value}" is no embedder; give "dct", "phash", "open_clip:MODEL:CHECKPOINT", "timm:MODEL:CHECKPOINT", "onnx:FILE" or "run:TRAINING_RUN"'
            )
        return value

    @model_validator(mode="after")
    def _buckets_can_be_made(self) -> Self:
        if not self.bucket_clusters <= self.nearest_clusters <= self.clusters:
            raise ValueError(
                f"bucket_clusters ({self.bucket_clusters}), nearest_clusters ({self.nearest_clusters}) and clusters ({self.clusters}) do not rise; "
                "a bucket is so many of an image's nearest clusters, which are of all clusters"
            )
        return self


class DedupSettings(Settings):
    """Near-duplicates inside the pool (ours)."""

    within_pool: Literal["off", "keep_one_image"] = "off"


class ShardsSettings(Settings):
    """Form of the shards (ours)."""

    samples_per_shard: Positive = 10_000
    resize_short_side_px: Whole = 0
    portable: bool = True


class AuditSettings(Settings):
    """What is kept for the audit (ours)."""

    keep_dropped: bool = True


class EngineSettings(Settings):
    """Where the pipeline runs; never changes a byte of the result."""

    runner: Literal["embedded", "prism", "spark", "flink", "dataflow"] = "embedded"
    workers: Whole = 0
    shuffle: Literal["files", "beam"] = "files"


class CurateConfig(Settings):
    """All settings of a curation."""

    run: RunSettings = RunSettings()
    input: Annotated[list[InputSettings], Extract, Field(min_length=1)]
    text: TextSettings = TextSettings()
    image: ImageSettings = ImageSettings()
    fetch: FetchSettings = FetchSettings()
    decontaminate: Annotated[DecontaminateSettings, Decontaminate] = DecontaminateSettings()
    dedup: Annotated[DedupSettings, Decontaminate] = DedupSettings()
    shards: Annotated[ShardsSettings, Write] = ShardsSettings()
    audit: Annotated[AuditSettings, Extract] = AuditSettings()
    engine: EngineSettings = EngineSettings()

    @field_validator("input", mode="before")
    @classmethod
    def _one_input_is_a_list(cls, value: Any) -> Any:
        return [value] if isinstance(value, dict) else value
