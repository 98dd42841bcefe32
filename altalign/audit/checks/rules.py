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
from altalign.data.reasons import DropReason
from altalign.data.stages import is_made_of_others
from altalign.errors import UnreadableError, UsageError
from altalign.filters import captions, identity, image, one_url, personal, text, urls, words
from altalign.filters.blocked import BlockList
from altalign.rules import reason_words
from altalign.rules.rule import Columns, Rule
from altalign.settings.curate import CurateConfig
from altalign.storage import arrays

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
            except (UnreadableError, OSError) as error:
                findings.fails(rule, str(error))
        hashes, addresses = config.image.blocked_hashes, config.fetch.blocked_urls
        return cls(
            run,
            config,
            tables,
            _block_list(hashes, image.image_blocked.name, "[image] blocked_hashes", findings),
            _block_list(addresses, DropReason.URL_BLOCKED, "[fetch] blocked_urls", findings),
            frozenset(each.source for each in config.input if each.has_images),
        )


def _table(path: str) -> Hashes | None:
    """A table of sorted hashes, mapped; None if the rule drops nothing because all n-grams are in it."""
    facts, hashes = storage.read_json(f"{path}.json"), arrays.mapped(f"{path}.npy")
    if facts.get("hash_versions") != identity.HASH_VERSIONS:
        raise UnreadableError(f"{path}.json: hashes of version {facts.get('hash_versions')}: not what is known here")
    if hashes.dtype != np.uint64 or hashes.shape != (facts.get("rows"),):
        raise UnreadableError(f"{path}.npy: not the hashes that {path}.json speaks of")
    return None if facts.get("all") is True else hashes


def _block_list(paths: Sequence[str], rule: str, setting: str, findings: Findings) -> BlockList:
    """Reads the block lists of a setting; if one is missing, its rule cannot be asked. PDQ hashes are left out."""
    texts: list[tuple[str, str]] = []
    for name in paths:
        try:
            texts.append((name, storage.read_bytes(name).decode()))
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "not text"
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
        (batch,) = rows.slice(begin, BLOCK).combine_chunks().to_batches()
        keys = batch["key"].to_pylist()

        def where(row: int, keys: Sequence[object] = keys) -> str:
            return f"{path}: {keys[row]}"

        in_hand = np.array([source in rules.sources_in_hand for source in batch["source"].to_pylist()], bool)
        identities, is_url = _check_identity(batch, rules, where, findings)
        _check_texts(batch, identities, is_url | in_hand, rules, where, findings)


def _check_identity(
    batch: pa.RecordBatch, rules: Rules, where: Where, findings: Findings
) -> tuple[pa.StringArray, npt.NDArray[np.bool_]]:
    """Checks URLs, image_id and key; returns the image identities, and whether each is a URL (bool[n])."""
    sources, written = batch["source"].to_pylist(), cast(pa.StringArray, batch["image_url"])
    trimmed, is_valid = urls.table_urls(written)
    # white space may be at the end of a URL, as it stood in front of a fragment
    is_trimmed: Any = pc.equal(pc.utf8_rtrim(written, characters=one_url.WHITE_SPACE), trimmed)
    taken: Any = pc.if_else(pc.and_(is_trimmed, pa.array(is_valid)), written, trimmed)
    form = "its URL is not in normal form: it has a fragment, or white space at an end"
    findings.rows("image_url", _differ(written.fill_null(""), taken.fill_null("")), where, form)
    if rules.config.fetch.blocked_urls:
        is_listed = [bool(url) and rules.blocked_urls.names_url(str(url)) for url in taken.to_pylist()]
        what = "the hash of its URL is in [fetch] blocked_urls"
        findings.rows(DropReason.URL_BLOCKED, np.array(is_listed, bool), where, what)
    known = {each.source for each in rules.config.input}
    unknown = np.array([source not in known for source in sources], bool)
    findings.rows("source", unknown, where, lambda row: f"source {sources[row]!r} is no [[input]] of config.toml")
    identities = cast(pa.StringArray, pc.if_else(pa.array(is_valid), taken, batch["found_sha256"]))
    computed = (identity.hexed(each) for each in identity.ids(identities, cast(pa.StringArray, batch["caption"])))
    for name, mine in zip(("image_id", "key"), computed, strict=True):
        what = f"{name} is not what its image and caption give: "
        differ = _differ(batch[name], mine)
        findings.rows(name, differ, where, lambda row, what=what, mine=mine: f"{what}{mine[row]}")
    return identities, np.asarray(is_valid, bool)


def _check_texts(
    batch: pa.RecordBatch,
    identities: pa.StringArray,
    has_identity: npt.NDArray[np.bool_],
    rules: Rules,
    where: Where,
    findings: Findings,
) -> None:
    """Measures captions again, and asks every text rule about them."""
    caption = cast(pa.StringArray, batch["caption"])
    form = "its caption is not as cleaning leaves it"
    findings.rows("captions", _differ(caption, captions.clean(caption)), where, form)
    measured, counted = words.scan(caption), batch["words"].to_numpy()
    both = "words = {}, its caption has {}".format
    findings.rows("words", counted != measured.words, where, lambda row: both(counted[row], measured.words[row]))

    def over(rule: Rule, hashes: Hashes) -> pa.Int64Array:
        """1 of a hash that is in the rule's table; null, within the limit, of any other."""
        table = rules.tables[rule.name]
        is_over = np.zeros(len(hashes), bool) if table is None else _is_in(hashes, table)
        return pa.array(is_over.astype(np.int64), pa.int64(), mask=~is_over)

    vocabulary, has_rare_ngram = rules.tables[text.text_has_rare_ngram.name], np.zeros(len(counted), bool)
    if vocabulary is not None:
        missing = np.concatenate([[0], np.cumsum(~_is_in(measured.ngrams, vocabulary))])
        has_rare_ngram = np.diff(missing[np.concatenate([[0], measured.ends])]) > 0
    columns: dict[str, Any] = {
        "caption": caption,
        "url": batch["image_url"],
        "page_url": batch["page_url"],
        "extra": batch["extra"],
        "has_identity": pa.array(has_identity),
        "words": pa.array(measured.words, pa.int32()),
        "has_rare_ngram": pa.array(has_rare_ngram),
        "images_per_text": over(text.text_on_too_many_images, measured.texts),
        "texts_per_image": over(text.image_has_too_many_texts, identity.image_hash(identities)),
        "has_personal": personal.has_any(caption, rules.config.text),
    }
    for rule in text.RULES:
        ask(rule, columns, rules.config, where, findings)


def ask(rule: Rule, columns: Columns, config: CurateConfig, where: Where, findings: Findings) -> None:
    """Asks a rule about n rows again; none of them may fail it."""
    is_failing: Any = rule.mask(columns, config)
    what = reason_words.sentence(config, rule.name).replace("`", "").removesuffix(".")
    findings.rows(rule.name, is_failing.to_numpy(zero_copy_only=False), where, what)


def _is_in(hashes: Hashes, table: Hashes) -> npt.NDArray[np.bool_]:
    """Whether each hash is in a sorted table: bool[n]."""
    distinct, place = np.unique(hashes, return_inverse=True)  # sorted, they are found in neighbouring pages
    if not len(table) or not len(distinct):
        return np.zeros(len(hashes), bool)
    places = np.minimum(np.searchsorted(table, distinct), len(table) - 1)
    return (table[places] == distinct)[place]


def _differ(a: Any, b: Any) -> npt.NDArray[np.bool_]:
    mask: Any = pc.not_equal(a, b)
    return mask.to_numpy(zero_copy_only=False)
