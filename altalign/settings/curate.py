"""CurateConfig: every threshold of a curation and its one default.

The docstring of a setting is its line in docs/reference/settings.md (`make docs`).
Numbers are from the ALIGN paper (section 3 and appendix A) unless marked "ours".
"""

import re
from collections.abc import Collection, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from altalign import __version__, storage
from altalign.data.purposes import Purpose
from altalign.machine.cores import cores
from altalign.settings import allowed_addresses
from altalign.settings.common import ReadBy, Settings, twice

Extract, Tables, Judge, Fetch, Decontaminate, Write = map(
    ReadBy, ("extract", "tables", "judge", "fetch", "decontaminate", "write")
)

OWN_TABLES = "own"  # [text] tables of a run that keeps those it has
LARGEST = 2**63 - 1  # the largest integer of TOML, Arrow and Parquet
Whole = Annotated[int, Field(ge=0, le=LARGEST)]
Positive = Annotated[int, Field(ge=1, le=LARGEST)]
AtLeast0 = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Embedder = Annotated[str, Field(pattern="^(dct|phash|(onnx|run):.+|(open_clip|timm):[^:]+:.+)$")]
_OF_A_STEP = re.compile(r"/step-\d+/[^/]+$")  # in the folder of a checkpoint that is not being written
Port = Annotated[int, Field(ge=1, le=65_535)]
Line = Annotated[str, Field(pattern=r"^([^\s\p{C}]([^\p{C}]*[^\s\p{C}])?)?$")]  # of text, without spaces at its ends
FUNCTION = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*"  # MODULE:FUNCTION
Function = Annotated[str, Field(pattern=f"^{FUNCTION}$")]
Country = Annotated[str, Field(pattern="^[A-Z]{2}$")]
# Of random groups of digits at most 1.7 % are a phone number in one of these, as filters/personal.py finds them; in
# others more (India: 5.5 %, Mexico: 3.8 %).
_PHONE_COUNTRIES = ("US", "GB", "DE", "FR", "ES", "IT", "BR", "JP")
Own = dict[str, dict[str, Any]]  # settings of rules of a run's own, by the names of their functions
_OWN_AT_MOST = 48  # verdicts are bits of 64, which the built-in rules share


class RunSettings(Settings):
    """Where a run is written."""

    folder: Annotated[str, Field(min_length=0)] = ""  # with a length, it is also checked to be Unicode
    """The run's folder, which must be given: a local path, `s3://BUCKET/…` or `gs://BUCKET/…`."""
    keep_work: bool = True
    """Keep `work/` after the run; `altalign clean` deletes it."""
    durable: bool = True
    """Flush a unit's files to disk before its mark."""


class InputSettings(Settings):
    """One input: files of one kind. Order of inputs, then of sorted paths, then of rows is the input order."""

    name: str = ""
    """`source` of the pairs. Empty: the kind; of further inputs of that kind the name of their first path."""
    kind: Literal["warc", "wat", "table", "webdataset", "folder"] = "warc"
    """Web archives, their metadata files (WAT), tables, WebDataset tars, or folders of images."""
    paths: Annotated[list[str], Field(min_length=1)]
    """Globs, in the working directory or a store (`s3://`, `gs://`, `hf://`), or `https://` addresses. One without a
    match is an error. A folder stands for its images (folder), tars and img2dataset's side-cars (webdataset), or saved
    data set (table).
    """
    url_column: str = "url"
    """Table: column of the image URL, or `""`. Folder: the key in an image's `.json`."""
    caption_column: str = "caption"
    """Table: column of captions or lists of captions, each a candidate. Folder: the same of the table of captions, or
    of an image's `.json`.
    """
    image_column: str = ""
    """Table: column of image bytes. Parquet and Arrow only."""
    page_url_column: str = ""
    """Table: column of the page's URL."""
    keep_columns: list[Annotated[str, Field(min_length=1)]] = Field(default_factory=list)
    """Columns (`.json`: keys) that pairs keep as `extra` in shards and dropped rows. Not for pages."""
    captions: str = ""
    """Folder: a table of captions with paths in the folder. `""`: captions are in an image's `.txt`, else its `.json`.
    """
    file_column: str = "file_name"
    """Folder with a table of captions: column of the image path."""
    caption_pattern: str = ""
    """Folder: a regular expression for whole paths; its group `caption` is the caption, with `_` and `-` as spaces."""
    decode_entities: bool = False
    """Decode `&amp;` and the like in captions, once. Pages and WAT always are."""
    skip_unreadable: bool = False
    """Count an unreadable file as one `record_broken` instead of stopping."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.keep_columns and (self.kind in ("warc", "wat") or self.caption_pattern):
            what = "a caption_pattern" if self.caption_pattern else f'kind = "{self.kind}"'
            raise ValueError(f"keep_columns: {what} has no columns; leave it out")
        if wrong := twice(self.keep_columns):
            raise ValueError(f'keep_columns: "{wrong}" is named twice; name it once')
        if self.captions and self.caption_pattern:
            raise ValueError("captions and caption_pattern are both given; captions come from one of them")
        return self

    @property
    def source(self) -> str:
        """What the pairs of this input carry as `source`."""
        return self.name or self.kind

    @property
    def has_images(self) -> bool:
        """Whether it holds images that may have no URL."""
        return self.kind in ("webdataset", "folder") or bool(self.image_column)

    @field_validator("caption_pattern")
    @classmethod
    def _pattern_has_a_caption(cls, value: str) -> str:
        try:
            if value and "caption" not in re.compile(value).groupindex:
                raise ValueError(f'{value!r} has no group "caption"; write (?P<caption>…) around it')
        except re.error as error:
            raise ValueError(f"{value!r} is no regular expression ({error}); correct it") from None
        return value


def _check_own(filters: list[str], own: Own) -> None:
    """Refuse a function that is named twice, too many of them, and settings of one that is not named."""
    names = [entry.rpartition(":")[2] for entry in filters]
    if (name := twice(names)) is not None:
        raise ValueError(f'filters: two functions are named "{name}", and so would be their reasons; rename one')
    if len(filters) > _OWN_AT_MOST:
        raise ValueError(f"filters: {len(filters)} functions, and at most {_OWN_AT_MOST} can be asked; join some")
    if unknown := [name for name in own if name not in names]:
        raise ValueError(f'own.{unknown[0]}: filters have no function "{unknown[0]}" (there are: {", ".join(names)})')


class TextSettings(Settings):
    """Text-based filtering (section 3)."""

    words_at_least: Annotated[Whole, Judge] = 3
    """Fewer words: `text_too_short`."""
    words_at_most: Annotated[Whole, Judge] = 20
    """More words: `text_too_long`. Not below `words_at_least`."""
    bytes_at_most: Annotated[int, Field(ge=1, le=65_536), Judge] = 65_536  # ours
    """More UTF-8 bytes: `text_too_large`. Readers cut captions here, so it cannot be raised."""
    images_per_text_at_most: Annotated[Whole, Tables] = 10
    """A text on more images: `text_on_too_many_images`."""
    vocabulary_size: Annotated[Positive, Tables] = 100_000_000
    """Most frequent unigrams and bigrams, counted together. An n-gram outside: `text_has_rare_ngram`."""
    tables: Annotated[str, Tables] = ""
    """Folder `tables` of another run, whose counts replace those of this pool. `own`: those that the run has, as
    `altalign add --mode frozen` keeps them, wherever the run is.
    """
    drop_personal: Annotated[list[Literal["email", "phone", "address"]], Judge] = Field(default_factory=list)
    """Kinds of personal data, `email`, `phone` and `address`, whose captions are dropped: `text_personal`."""
    phone_countries: Annotated[list[Country], Judge] = Field(default_factory=lambda: [*_PHONE_COUNTRIES])
    """Countries (ISO 3166) whose national phone numbers are found beside the international ones of all."""
    filters: Annotated[list[Function], Judge] = Field(default_factory=list)
    """Rules of your own, `"MODULE:FUNCTION"`: `own:FUNCTION`. The module is beside the settings file or on the Python
    path.
    """
    own: Annotated[Own, Judge] = Field(default_factory=dict)
    """Settings of your own rules: `[text.own.FUNCTION]`."""

    @field_validator("phone_countries")
    @classmethod
    def _countries_have_numbers(cls, value: list[str]) -> list[str]:
        if not {*value} <= {*_PHONE_COUNTRIES}:
            from phonenumbers import SUPPORTED_REGIONS  # a twelfth of a second

            for country in {*value} - SUPPORTED_REGIONS:
                raise ValueError(f'"{country}" has no phone numbers of its own; give countries by ISO 3166, such as GB')
        return value

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        _check_own(self.filters, self.own)
        if self.words_at_least > self.words_at_most:
            raise ValueError(
                f"words_at_least ({self.words_at_least}) is above words_at_most ({self.words_at_most}): "
                "nothing would be kept; lower the one or raise the other"
            )
        return self


class NsfwSettings(Settings):
    """Removal of pornographic images (section 3; the paper names neither classifier nor threshold)."""

    model: str = ""
    """An ONNX file with a TOML of its name beside it. Empty: no rule."""
    drop_at_or_above: Annotated[float, Field(ge=0, le=1)] = 0.5
    """A score of this or more: `image_nsfw`."""


class ImageSettings(Settings):
    """Image-based filtering (section 3)."""

    short_side_above_px: Annotated[Whole, Fetch] = 200
    """A short side of this or less: `image_too_small`."""
    aspect_ratio_below: Annotated[float, Field(gt=1), Fetch] = 3.0
    """Long side / short side of this or more: `image_too_elongated`."""
    texts_per_image_at_most: Annotated[Whole, Tables] = 1000
    """An image with more texts: `image_has_too_many_texts`."""
    pixels_at_most: Annotated[Positive, Fetch] = 178_956_970  # ours: Pillow's own limit against decompression bombs
    """More pixels: `image_too_many_pixels`, without decoding."""
    blocked_hashes: Annotated[list[str], Fetch] = Field(default_factory=list)
    """Files of image hashes (SHA-256, SHA-1, MD5, PDQ), one a line: `image_blocked`."""
    filters: Annotated[list[Function], Fetch] = Field(default_factory=list)
    """Rules of your own, as those of `[text]`: `own:FUNCTION`."""
    own: Annotated[Own, Fetch] = Field(default_factory=dict)
    """Settings of your own rules: `[image.own.FUNCTION]`."""
    nsfw: Annotated[NsfwSettings, Fetch] = NsfwSettings()

    @model_validator(mode="after")
    def _own_rules_have_names(self) -> Self:
        _check_own(self.filters, self.own)
        return self


class FetchSettings(Settings):
    """Where images come from (ours; the paper does not say).

    Settings that decide what may be fetched, and whether an answer is accepted, are part of what a run rests on.
    Settings of patience and pace, and signatures, are not: they decide only how many images have come so far, and a run
    may be continued or tried again with other values.
    """

    source: Annotated[Literal["archive", "web"], Fetch] = "archive"
    """Take images from the inputs, or over HTTP. `"web"` fetches those of web archives; other inputs still give their
    own.
    """
    timeout_s: Annotated[float, Field(gt=0)] = 10.0
    """Seconds of one try, with redirects and body. Longer: `http_timeout`."""
    retries: Whole = 2
    """Further tries after status 429 or 5xx, a timeout, an unreachable host or a broken answer; one of a host that
    never answered. Pauses grow, or follow `Retry-After`. `0`: no connection is kept.
    """
    bytes_at_most: Annotated[Positive, Fetch] = 20_000_000
    """Bytes of a decompressed body. More: `http_too_large`; in a table: `row_too_large`."""
    keep_found: bool = False
    """Keep all that comes from the web as it was found, in `work/`: as much disk as comes. Without it, `--rerun` with
    other image rules or form of shards asks the web again for images that were dropped or encoded.
    """
    threads: Positive = 64
    """Concurrent requests of a process. Waiting for a host's turn takes none."""
    purpose: Annotated[Purpose, Fetch] = "train"
    """What the data are for: an image is dropped where its rights holder opposes that, in headers, pages, robots.txt or
    the image itself ([notations](reservations.md)): `opt_out_NOTATION`. `"train"`: any training, opposed by whatever
    opposes some; `"train-generative"`: of generative models; `"train-other"`: of classifiers, towers, ranking;
    `"search"`: an index. `"keep all"` drops nothing, and all is recorded in `preferences`.
    """
    honour_robots: Annotated[bool, Fetch] = True
    """Respect what robots.txt allows this robot to fetch: `opt_out_robots_txt`. `false` asks no site for it or for
    tdmrep.json, so that what these say of the use of images is not known.
    """
    connections_per_host: Positive = 8
    """Concurrent requests of a process to one host."""
    requests_per_host_s: Annotated[float, Field(gt=0)] = 20.0
    """Requests a second of a process to one host."""
    blocked_domains: Annotated[list[str], Fetch] = Field(default_factory=list)
    """Files of domains, one a line, which are never asked, nor their subdomains: `http_refused`."""
    blocked_urls: Annotated[list[str], Fetch] = Field(default_factory=list)
    """Files of URL hashes (SHA-256, SHA-1 or MD5), one a line; these images are neither asked for nor decoded:
    `url_blocked`.
    """
    ports: Annotated[list[Port], Fetch] = Field(default_factory=lambda: [80, 443])
    """Ports that may be reached. Another: `http_refused`."""
    allow_addresses: Annotated[list[str], Fetch] = Field(default_factory=list)
    """Private addresses, networks or `ADDRESS:PORT` that may be reached: `["127.0.0.1:8080", "10.0.0.0/8"]`."""
    user_agent: Annotated[str, Fetch, Field(pattern="^[!-~]([ -~]*[!-~])?$")] = "altalign/VERSION"
    """User agent, with VERSION filled in; robots.txt is read for its first word. Add a contact: `"altalign/VERSION
    (+https://example.org/our-crawl)"`.
    """
    signing_key: str = ""
    """PEM file of an Ed25519 private key, which [signs requests](../guides/fetch-from-the-web.md#signed-requests)."""
    signature_agent: Annotated[str, Field(pattern=r"^(https://[a-z0-9.-]+(:[0-9]+)?)?$")] = ""
    """Where sites find its public key: `"https://example.org"`."""

    @model_validator(mode="after")
    def _a_key_has_an_agent(self) -> Self:
        if bool(self.signing_key) != bool(self.signature_agent):
            raise ValueError("signing_key and signature_agent: give both, or neither")
        return self

    @field_validator("allow_addresses")
    @classmethod
    def _addresses_can_be_read(cls, value: list[str]) -> list[str]:
        for entry in value:
            allowed_addresses.allowed(entry)
        return value

    @property
    def user_agent_sent(self) -> str:
        """`user_agent` with VERSION filled in, which is left in the setting: a new version refuses no run."""
        return self.user_agent.replace("VERSION", __version__)


class TestSet(Settings):
    """A named set of test images."""

    name: Annotated[str, Field(min_length=1)]
    path: Annotated[str, Field(min_length=1)]
    image_column: str = "image"


def _form(entry: object) -> str:
    return "(table)" if isinstance(entry, (dict, TestSet)) else "(path)"


TestSetEntry = Annotated[
    Annotated[str, Field(min_length=1), Tag("(path)")] | Annotated[TestSet, Tag("(table)")], Discriminator(_form)
]


class DecontaminateSettings(Settings):
    """Removal of near-duplicates of test images (appendix A)."""

    test_sets: list[TestSetEntry] = Field(default_factory=list)
    """Test images that must not be in the data: folders, Parquet files or WebDataset tars (or globs), each a path or
    `{name = "coco", path = "…", image_column = "image"}`.
    """
    embedder: Annotated[Embedder, Fetch] = "dct"
    """What describes an image: `dct`, `phash`, `open_clip:MODEL:CHECKPOINT`, `timm:MODEL:CHECKPOINT`, `onnx:FILE` or
    `run:TRAINING_RUN`.
    """
    clusters: Annotated[Positive, Field(ge=10)] = 4096
    """Clusters of k-means. An image's bucket is 3 of its 10 nearest."""
    require_bucket: bool = True
    """Compare only images of one bucket; `false`: all, by cosine alone."""
    similarity_above: Annotated[float, Field(ge=0, le=1)] = 0.975
    """A greater cosine is a near-duplicate."""
    mirrored: bool = False
    """Also find mirrored copies."""
    calibration: str = ""
    """Folder of a calibration."""

    @property
    def named_sets(self) -> "list[TestSet]":
        """The test sets, each with a name; the default is the name of its file or folder."""
        return [
            TestSet(name=Path(entry).name or entry, path=entry) if isinstance(entry, str) else entry
            for entry in self.test_sets
        ]

    @property
    def embedder_files(self) -> list[str]:
        """The files named in `embedder`, on which results rest; for an ONNX file also the TOML beside it."""
        kind, *names = self.embedder.split(":", maxsplit=2 if self.embedder.startswith(("open_clip:", "timm:")) else 1)
        if kind == "run":  # what the manifest of its newest checkpoint has digests of
            folder = storage.join(names[0], "checkpoints")
            marks = [mark for mark in storage.below(folder, "manifest.json") if _OF_A_STEP.search(mark)]
            none = storage.join(folder, "step-0000000", "manifest.json")
            return [max(marks, key=lambda mark: (len(mark), mark), default=none)]
        return [*names[-1:], *(str(Path(name).with_suffix(".toml")) for name in names if kind == "onnx")]

    @model_validator(mode="after")
    def _test_sets_have_names_of_their_own(self) -> Self:
        if name := twice([each.name for each in self.named_sets]):
            raise ValueError(f'two test sets are named "{name}"; give names: {{name = "…", path = "…"}}')
        return self


class DedupSettings(Settings):
    """Near-duplicates inside the pool (ours)."""

    within_pool: Literal["off", "keep_one_image"] = "off"
    """Keep, of near-duplicates in the pool, the image with the smallest image_id and all its captions. Not in ALIGN.
    """


class ShardsSettings(Settings):
    """Form of the shards (ours)."""

    samples_per_shard: Positive = 10_000
    """Samples of a shard; the last may have fewer."""
    captions: Literal["one", "all"] = "one"
    """`one`: a sample is a pair. `all`: an image with all its captions, and the share of each."""
    caption_shares: dict[str, AtLeast0] = Field(default_factory=dict)
    """With `captions = "all"`: weights of an image's captions by the name of their input. Empty: all alike."""
    resize_short_side_px: Annotated[Whole, Fetch] = 0
    """Shrink longer short sides to this, as JPEG; `0` keeps the size."""
    portable: Annotated[bool, Fetch] = True
    """Store images as upright JPEGs, RGB or gray: other images are encoded (quality 95, first frame, sRGB, on white).
    `false`: as found.
    """

    @property
    def of_image(self) -> Mapping[str, Any]:
        """What decides how an image is stored, as keywords of `pixels.to_stored`."""
        return {"portable": self.portable, "resize_short_side_px": self.resize_short_side_px}

    def shares(self, sources: Sequence[str]) -> list[float]:
        """The share of each caption of an image by its source; where none has a weight, all are alike."""
        weights = [self.caption_shares.get(source, 1.0) for source in sources]
        weights = weights if any(weights) else [1.0] * len(weights)
        return [weight / sum(weights) for weight in weights]

    @model_validator(mode="after")
    def _shares_are_of_all_captions(self) -> Self:
        if self.caption_shares and self.captions == "one":
            raise ValueError('caption_shares without captions = "all"; leave one of both out')
        return self


class AuditSettings(Settings):
    """What is kept for the audit (ours)."""

    keep_dropped: bool = True
    """Write dropped candidates to `dropped/`, of `extract` a sample. Without them `explain` knows only kept pairs."""


class CardSettings(Settings):
    """Facts for the data-set card that no stage can know (ours)."""

    name: Line = ""
    """Name of the data set; `""`: "Image-text pairs from" its sources."""
    licence: Annotated[str, Field(pattern="^[A-Za-z0-9.+-]*$")] = ""
    """Licence: an identifier of SPDX (`CC-BY-4.0`) or Hugging Face (`cc-by-4.0`). `""`: unknown."""
    languages: list[Annotated[str, Field(pattern="^[a-z]{2,3}(-[A-Za-z0-9]{1,8})*$")]] = Field(default_factory=list)
    """Languages of captions as BCP 47 tags: `["en", "pt-BR"]`. Nothing detects them."""
    contact: Line = ""
    """Address or URL for removal requests."""


class EngineSettings(Settings):
    """Where the pipeline runs; never changes a byte of the result."""

    runner: Literal["embedded", "prism", "spark", "flink", "dataflow"] = "embedded"
    """Beam runner. `"prism"` needs `make prism`; `"spark"` and `"flink"` need `make jars` and run here unless flags
    after `--` name a cluster; `"dataflow"` needs a container image and more flags.
    """
    workers: Whole = 0
    """Units at a time on this machine; `0`: one per core. Refused for a cluster. More units may wait for the web."""

    @property
    def threads(self) -> int:
        """How many units one process works on at a time."""
        return self.workers or cores() if self.runner == "embedded" else 1


def named_after(path: str, taken: Collection[str]) -> str:
    """A name for an input with this path, such as `2024-holidays`, that is not taken."""
    stem = "-".join(re.findall(r"\w+", path)[-2:]) or "input"
    return next(name for number in count(1) if (name := stem if number == 1 else f"{stem}-{number}") not in taken)


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
    card: Annotated[CardSettings, Write] = CardSettings()
    engine: EngineSettings = EngineSettings()

    @field_validator("input", mode="before")
    @classmethod
    def _one_input_is_a_list(cls, value: object) -> object:
        return [value] if isinstance(value, dict) else value

    @field_validator("input")
    @classmethod
    def _sources_are_told_apart(cls, inputs: list[InputSettings]) -> list[InputSettings]:
        taken, named = set[str](), list[InputSettings]()
        for each in inputs:
            name = each.source
            if not each.name and name in taken:
                name = named_after(each.paths[0], taken)
                each = each.model_copy(update={"name": name})
            taken.add(name)
            named.append(each)
        return named

    @property
    def caption_weights(self) -> dict[str, float]:
        """The weight of the captions of each input among those of an image."""
        return {each.source: self.shards.caption_shares.get(each.source, 1.0) for each in self.input}

    @model_validator(mode="after")
    def _shares_are_of_all_inputs(self) -> Self:
        names, shares = [each.source for each in self.input], self.shards.caption_shares
        if shares and (wrong := sorted({*names} ^ shares.keys())):
            what = f"no share for {wrong[0]}" if wrong[0] in names else f"{wrong[0]} is no input"
            raise ValueError(f"[shards] caption_shares: {what}; give each of {', '.join(names)} one, 0 to leave it out")
        return self
