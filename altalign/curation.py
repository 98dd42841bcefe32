"""CurateConfig: every threshold of a curation and its one default.

Numbers are of the ALIGN paper (section 3 and appendix A) unless marked "ours".
"""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from altalign.settings import ReadBy, Settings

Extract, Tables, Judge, Fetch, Decontaminate, Write = map(ReadBy, ("extract", "tables", "judge", "fetch", "decontaminate", "write"))


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

    words_at_least: Annotated[int, Field(ge=0), Judge] = 3
    words_at_most: Annotated[int, Field(ge=0), Judge] = 20
    images_per_text_at_most: Annotated[int, Field(ge=0), Tables] = 10
    vocabulary_size: Annotated[int, Field(ge=1), Tables] = 100_000_000

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

    short_side_above_px: Annotated[int, Field(ge=0), Fetch] = 200
    aspect_ratio_below: Annotated[float, Field(gt=1), Fetch] = 3.0
    texts_per_image_at_most: Annotated[int, Field(ge=0), Tables] = 1000
    pixels_at_most: Annotated[int, Field(ge=1), Fetch] = 178_956_970  # ours: Pillow's own limit against decompression bombs
    blocked_hashes: Annotated[list[str], Fetch] = []
    nsfw: Annotated[NsfwSettings, Fetch] = NsfwSettings()


class FetchSettings(Settings):
    """Where images come from (ours; the paper does not say)."""

    source: Annotated[Literal["archive", "web"], Fetch] = "archive"
    timeout_s: Annotated[float, Field(gt=0), Fetch] = 10
    retries: Annotated[int, Field(ge=0), Fetch] = 2
    bytes_at_most: Annotated[int, Field(ge=1), Fetch] = 20_000_000
    threads: Annotated[int, Field(ge=1)] = 64
    honour_opt_out: Annotated[bool, Fetch] = True
    honour_robots: Annotated[bool, Fetch] = True
    connections_per_host: Annotated[int, Field(ge=1)] = 8
    requests_per_host_s: Annotated[float, Field(gt=0)] = 20.0
    blocked_domains: Annotated[list[str], Fetch] = []
    ports: Annotated[list[int], Fetch] = [80, 443]
    allow_addresses: Annotated[list[str], Fetch] = []
    user_agent: Annotated[str, Fetch] = "altalign/VERSION (+URL of the project)"


class TestSet(Settings):
    """A named set of test images."""

    name: str
    path: str
    image_column: str = "image"


class DecontaminateSettings(Settings):
    """Removal of near-duplicates of test images (appendix A)."""

    test_sets: list[str | TestSet] = []
    embedder: str = "dct"
    clusters: Annotated[int, Field(ge=1)] = 4096
    nearest_clusters: Annotated[int, Field(ge=1)] = 10
    bucket_clusters: Annotated[int, Field(ge=1)] = 3
    require_bucket: bool = True
    similarity_above: Annotated[float, Field(ge=-1, le=1)] = 0.975
    mirrored: bool = False
    calibration: str = ""


class DedupSettings(Settings):
    """Near-duplicates inside the pool (ours)."""

    within_pool: Literal["off", "keep_one_image"] = "off"


class ShardsSettings(Settings):
    """Form of the shards (ours)."""

    samples_per_shard: Annotated[int, Field(ge=1)] = 10_000
    resize_short_side_px: Annotated[int, Field(ge=0)] = 0
    portable: bool = True


class AuditSettings(Settings):
    """What is kept for the audit (ours)."""

    keep_dropped: bool = True


class EngineSettings(Settings):
    """Where the pipeline runs; never changes a byte of the result."""

    runner: Literal["embedded", "prism", "spark", "flink", "dataflow"] = "embedded"
    workers: Annotated[int, Field(ge=0)] = 0
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
