"""Asks the text rules about the rows of a side-car again, and checks identity and form. No column is taken on trust."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from altalign import storage
from altalign.audit.checks.findings import Findings
from altalign.audit.run_folder import RunFolder
from altalign.data.lineage import is_merged
from altalign.data.reasons import DropReason
from altalign.data.stages import is_made_of_others
from altalign.errors import UnreadableError, UsageError
from altalign.filters import captions, identity, image, one_url, text, urls, words
from altalign.filters.blocked import BlockList
from altalign.rules import reason_words
from altalign.rules.rule import Columns, Rule
from altalign.settings.curate import CurateConfig
from altalign.storage import arrays
from altalign.terminal import many

BLOCK = 8_192  # rows whose n-grams are hashed at a time

# The table of each rule: hashes that are in the vocabulary, or over a limit.
TABLES = {
    text.text_has_rare_ngram.name: "vocabulary",
    text.text_on_too_many_images.name: "over_shared_texts",
    text.image_has_too_many_texts.name: "over_captioned_images",
}

Hashes = npt.NDArray[np.uint64]
Where = Callable[[int], str]  # names a row by its number


@dataclass(frozen=True)
class Rules:
    """What rows are checked against."""

    run: RunFolder
    config: CurateConfig
    tables: Mapping[str, Hashes | None]  # by rule; None if it is missing, or drops nothing
    blocked: BlockList
    blocked_urls: BlockList
    sources_in_hand: frozenset[str]  # sources whose rows may have image bytes instead of a URL
    is_of_web: bool  # whether images that were not in hand came from the web; of merged runs one may have had archives

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process maps the tables itself instead of receiving them."""
        return Rules.read, (self.run, Findings())

    @classmethod
    def read(cls, run: RunFolder, findings: Findings) -> "Rules":
        """Reads the rules of a run; a table that cannot be read fails the check of its rule. Raises DamagedError."""
        config, tables = run.config, dict[str, Hashes | None]()
        for rule, name in TABLES.items():
            tables[rule] = None
            if is_made_of_others(run.folder) and not storage.exists(run.path("tables", f"{name}.json")):
                findings.cannot_ask(rule, "a run of several runs has no tables; the checks of those have asked")
                continue
            try:
                tables[rule] = _table(run.path("tables", name))
            except UnreadableError as error:
                findings.fails(rule, str(error))
            except OSError as error:
                findings.fails(rule, f"{error.filename}: {error.strerror}")
        hashes, addresses = config.image.blocked_hashes, config.fetch.blocked_urls
        return cls(
            run,
            config,
            tables,
            _block_list(hashes, image.image_blocked.name, "[image] blocked_hashes", findings),
            _block_list(addresses, DropReason.URL_BLOCKED, "[fetch] blocked_urls", findings),
            frozenset(each.source for each in config.input if each.has_images),
            config.fetch.source == "web" and not is_merged(run.folder),
        )


def _table(path: str) -> Hashes | None:
    """A table of sorted hashes, mapped; None if the rule drops nothing because all n-grams are in it."""
    facts = storage.read_json(f"{path}.json")
    if facts.get("hash_versions") != identity.HASH_VERSIONS or not isinstance(facts.get("rows"), int):
        given = f"hashes of version {facts.get('hash_versions')}, rows {facts.get('rows')!r}"
        raise UnreadableError(f"{path}.json: {given}: not what is understood here")
    hashes = arrays.mapped(f"{path}.npy")
    if hashes.dtype != np.uint64 or hashes.shape != (facts["rows"],):
        given = f"{hashes.dtype} {hashes.shape}"
        raise UnreadableError(f"{path}.npy: {given}, but {path}.json says {facts['rows']:,} hashes")
    return None if facts.get("all") is True else hashes


def _block_list(paths: Sequence[str], rule: str, setting: str, findings: Findings) -> BlockList:
    """Reads the block lists of a setting; if one is missing, its rule cannot be asked. PDQ hashes are left out."""
    texts: list[tuple[str, str]] = []
    for name in paths:
        try:
            texts.append((name, storage.read_bytes(name).decode()))
        except (OSError, UnicodeDecodeError) as error:
            why = (error.strerror if isinstance(error, OSError) else None) or "not text"
            repair = "run this in the folder that the run was made in, with the list"
            findings.cannot_ask(rule, f"{setting}: {name}: {why}; {repair}")
    try:
        return BlockList.parse(texts)
    except UsageError as error:
        findings.cannot_ask(rule, str(error))
        return BlockList()


def check(rows: pa.Table, rules: Rules, path: str, findings: Findings) -> None:
    """Checks everything that a side-car alone can tell: rows of `schema.SAMPLE`, with nulls only in URLs, in UTF-8."""
    for begin in range(0, len(rows), BLOCK):
        batch = rows.slice(begin, BLOCK).combine_chunks()
        keys = batch["key"].to_pylist()

        def where(row: int, keys: Sequence[object] = keys) -> str:
            return f"{path}: {keys[row]}"

        identities = _check_identity(batch, rules, where, findings)
        _check_texts(batch, identities, rules, where, findings)


def _check_identity(batch: pa.Table, rules: Rules, where: Where, findings: Findings) -> pa.StringArray:
    """Checks URLs, image_id and key; returns the image identities."""
    sources, written = batch["source"].to_pylist(), _strings(batch, "image_url")
    trimmed, is_valid = urls.table_urls(written)
    # white space may be at the end of a URL, as it stood in front of a fragment
    is_trimmed: Any = pc.equal(pc.utf8_rtrim(written, characters=one_url.WHITE_SPACE), trimmed)
    taken = cast(pa.StringArray, pc.if_else(pc.and_(is_trimmed, pa.array(is_valid)), written, trimmed))
    form = "its URL is not in normal form: it has a fragment, or white space at an end"
    findings.rows("image_url", ~_equal(written.fill_null(""), taken.fill_null("")), where, form)
    if rules.config.fetch.blocked_urls:
        is_listed = [bool(url) and rules.blocked_urls.names_url(str(url)) for url in taken.to_pylist()]
        what = "the hash of its URL is in [fetch] blocked_urls"
        findings.rows(DropReason.URL_BLOCKED, np.array(is_listed, bool), where, what)
    known = {each.source for each in rules.config.input}
    unknown = np.array([source not in known for source in sources], bool)
    findings.rows("source", unknown, where, lambda row: f"source {sources[row]!r} is no [[input]] of config.toml")
    identities = cast(pa.StringArray, pc.if_else(pa.array(is_valid), taken, _strings(batch, "found_sha256")))
    image_ids, keys = (identity.hexed(each) for each in identity.ids(identities, _strings(batch, "caption")))
    for name, mine in (("image_id", image_ids), ("key", keys)):
        what = f"{name} is not what its image and caption give: "
        is_other = ~_equal(_strings(batch, name), mine)
        findings.rows(name, is_other, where, lambda row, what=what, mine=mine: f"{what}{mine[row]}")
    return identities


def _check_texts(batch: pa.Table, identities: pa.StringArray, rules: Rules, where: Where, findings: Findings) -> None:
    """Measures captions again, and asks every text rule about them."""
    caption, url = _strings(batch, "caption"), _strings(batch, "image_url")
    is_other = ~_equal(caption, captions.clean(caption))
    findings.rows("captions", is_other, where, "its caption is not as cleaning leaves it")
    measured, counted = words.scan(caption), batch["words"].to_numpy()
    both = "words = {}, its caption has {}".format
    findings.rows("words", counted != measured.words, where, lambda row: both(counted[row], measured.words[row]))
    vocabulary, has_rare_ngram = rules.tables[text.text_has_rare_ngram.name], np.zeros(len(counted), bool)
    if vocabulary is not None:
        missing = np.concatenate([[0], np.cumsum(~_is_in(measured.ngrams, vocabulary))])
        has_rare_ngram = np.diff(missing[np.concatenate([[0], measured.ends])]) > 0
    over = {}  # null where the table has no such hash, which is within the limit
    images = identity.image_hash(identities)
    for rule, hashes in ((text.text_on_too_many_images, measured.texts), (text.image_has_too_many_texts, images)):
        table = rules.tables[rule.name]
        is_over = np.zeros(len(hashes), bool) if table is None else _is_in(hashes, table)
        over[rule.name] = pa.array(is_over.astype(np.int64), mask=~is_over)
    in_hand = pa.array([source in rules.sources_in_hand for source in batch["source"].to_pylist()], pa.bool_())
    columns = {
        "caption": caption,
        "url": url,
        "page_url": _strings(batch, "page_url"),
        "extra": _strings(batch, "extra"),
        "has_identity": pc.or_(pa.array(urls.table_urls(url)[1]), in_hand),
        "words": pa.array(measured.words, pa.int32()),
        "has_rare_ngram": pa.array(has_rare_ngram),
        "images_per_text": over[text.text_on_too_many_images.name],
        "texts_per_image": over[text.image_has_too_many_texts.name],
    }
    for rule in text.RULES:
        ask(rule, columns, rules.config, where, findings)


def ask(rule: Rule, columns: Columns, config: CurateConfig, where: Where, findings: Findings) -> None:
    """Asks a rule about n rows again; none of them may fail it."""
    if missing := [name for name in rule.columns if name not in columns]:
        findings.cannot_ask(rule.name, f"its column {missing[0]} is not measured again")
        return

    def failure(row: int) -> str:
        values = {
            "words": lambda: many(columns["words"][row].as_py(), "word"),
            "size": lambda: f"{columns['width'][row]} x {columns['height'][row]} px",
        }
        try:
            return reason_words.explained(rule.name, config, {}, values)
        except KeyError:  # it names what a side-car does not hold
            return reason_words.sentence(config, rule.name).removesuffix(".")

    is_failing: Any = rule.mask(columns, config)
    findings.rows(rule.name, is_failing.to_numpy(zero_copy_only=False), where, failure)


def _is_in(hashes: Hashes, table: Hashes) -> npt.NDArray[np.bool_]:
    """Whether each hash is in a sorted table: bool[n]."""
    distinct, place = np.unique(hashes, return_inverse=True)  # sorted, they are found in neighbouring pages
    if not len(table) or not len(distinct):
        return np.zeros(len(hashes), bool)
    places = np.minimum(np.searchsorted(table, distinct), len(table) - 1)
    return (table[places] == distinct)[place]


def _strings(batch: pa.Table, name: str) -> pa.StringArray:
    column: Any = batch[name]
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays([pa.array([], pa.string()), *column.chunks])


def _equal(a: Any, b: Any) -> npt.NDArray[np.bool_]:
    mask: Any = pc.equal(a, b)
    return mask.to_numpy(zero_copy_only=False)
