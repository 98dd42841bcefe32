"""`altalign explain RUN --url U / --text T / --key K`: what happened to a pair in every stage, with the measured values."""

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from altalign.errors import NotFoundError, UsageError
from altalign.reasons import DropReason, Stage
from audit.run_folder import RunFolder
from filters import captions, urls, words

STAGES = (Stage.EXTRACT, Stage.JUDGE, Stage.FETCH, Stage.IMAGE)
MOST = 20

# What was measured, beside the setting that it was held against: "{row[...]}" and "{settings...}" are filled in.
_MEASURED: dict[str, str] = {
    DropReason.RECORD_BROKEN: "{row[error]} ({row[file]}, offset {row[offset]})",
    DropReason.TEXT_TOO_SHORT: "{row[words]} words, [text] words_at_least = {config.text.words_at_least}",
    DropReason.TEXT_TOO_LONG: "{row[words]} words, [text] words_at_most = {config.text.words_at_most}",
    DropReason.TEXT_ON_TOO_MANY_IMAGES: "on {row[images_per_text]} images, [text] images_per_text_at_most = {config.text.images_per_text_at_most}",
    DropReason.IMAGE_HAS_TOO_MANY_TEXTS: "{row[texts_per_image]} texts, [image] texts_per_image_at_most = {config.image.texts_per_image_at_most}",
    DropReason.PAIR_REPEATED: "the same image and caption were kept once, as key {row[kept_key]}",
    DropReason.NOT_IN_ARCHIVE: "no archive of the run has the image's URL",
    DropReason.IMAGE_TOO_MANY_PIXELS: "{row[width]} x {row[height]} px, [image] pixels_at_most = {config.image.pixels_at_most}",
    DropReason.IMAGE_TOO_SMALL: "{row[width]} x {row[height]} px, [image] short_side_above_px = {config.image.short_side_above_px}",
    DropReason.IMAGE_TOO_ELONGATED: "{row[width]} x {row[height]} px, [image] aspect_ratio_below = {config.image.aspect_ratio_below}",
    DropReason.IMAGE_NSFW: "score {row[nsfw_score]}, [image.nsfw] drop_at_or_above = {config.image.nsfw.drop_at_or_above}",
}


def main(argv: Sequence[str]) -> int:
    """Find a pair and say what became of it."""
    parser = argparse.ArgumentParser(prog="altalign explain", description="What happened to a pair in every stage of a run, with the measured values.")
    parser.add_argument("run", metavar="RUN", help="folder of a run")
    wanted = parser.add_mutually_exclusive_group(required=True)
    wanted.add_argument("--url", help="the image's URL")
    wanted.add_argument("--text", help="the caption")
    wanted.add_argument("--key", help="the pair's key, or its image_id: 32 hex digits")
    arguments = parser.parse_args(argv)
    run = RunFolder.open(arguments.run)
    matches, what = _condition(arguments)
    blocks, found = [], {"kept": 0, "dropped": 0}
    for verdict, rows in (("kept", run.samples(matches)), ("dropped", run.dropped(matches))):
        for row in rows:
            found[verdict] += 1
            if len(blocks) < MOST:
                blocks.append(_kept(row) if verdict == "kept" else _dropped(run, row))
    if not blocks:
        raise NotFoundError(f"{run.folder}: nothing found with {what}{_hint(run)}")
    sys.stdout.write("\n".join(blocks))
    if (more := sum(found.values()) - len(blocks)) > 0:
        sys.stdout.write(f"\n… and {more:,} more pairs with {what} ({found['kept']:,} kept, {found['dropped']:,} dropped in all)\n")
    return 0


def _condition(arguments: argparse.Namespace) -> tuple[pc.Expression, str]:
    if arguments.key:
        key = arguments.key.strip().lower()
        if len(key) != 32 or set(key) - set("0123456789abcdef"):
            raise UsageError(f"--key {arguments.key}: not 32 hex digits")
        return (pc.field("key") == key) | (pc.field("image_id") == key), f"key or image_id {key}"
    if arguments.url is not None:
        url = urls.table_urls(pa.array([arguments.url]))[0][0].as_py()
        return pc.field("image_url").isin([url, arguments.url]), f"image_url {url!r}"
    caption = captions.clean(pa.array([arguments.text]))[0].as_py()
    return pc.field("caption") == caption, f"caption {caption!r}"


def _hint(run: RunFolder) -> str:
    parts = []
    if not run.is_finished:
        parts.append("the run is not finished")
    if not run.config.audit.keep_dropped:
        parts.append("[audit] keep_dropped = false: dropped rows were not kept")
    parts.append("of what extract drops (no alt-text, no valid URL) only a sample is kept; captions are compared after cleaning, case counts")
    return "; " + "; ".join(parts)


def _pair(row: dict[str, Any]) -> str:
    lines = [
        f"caption   {row['caption']}",
        f"image     {row['image_url']}",
        f"page      {row['page_url']}",
        f"source    {row['source']}",
        f"key       {row['key']}",
        f"image_id  {row['image_id']}",
    ]
    return "".join(f"{_shown(line)}\n" for line in lines if not line.endswith(" None"))


def _shown(text: str) -> str:
    """Text from the web as a terminal may have it: control characters written out, so that none of them acts."""
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)


def _kept(row: dict[str, Any]) -> str:
    shard = row["in"].removesuffix(".parquet") + ".tar"
    steps = "".join(f"  {stage.value:<9} kept\n" for stage in STAGES)
    return f"{_pair(row)}{steps}  written   {shard}, {row['words']} words, {row['width']} x {row['height']} px {row['format']}, {row['bytes']:,} bytes\n"


def _dropped(run: RunFolder, row: dict[str, Any]) -> str:
    before = [stage for stage in STAGES if stage.value != row["stage"]][: [s.value for s in STAGES].index(row["stage"])]
    lines = [f"  {stage.value:<9} kept\n" for stage in before]
    lines.append(f"  {row['stage']:<9} dropped: {row['reason']}\n")
    lines += [f"            - {reason}{_said(run, reason, row)}\n" for reason in row["failed"] or [row["reason"]]]
    lines.append(f"  row in    {row['in']}\n")
    return _pair(row) + "".join(lines)


def _said(run: RunFolder, reason: str, row: dict[str, Any]) -> str:
    if reason == DropReason.TEXT_HAS_RARE_NGRAM:
        return f": {_rare_ngrams(run, row['caption'])}, [text] vocabulary_size = {run.config.text.vocabulary_size}"
    pattern = _MEASURED.get(reason)
    return f": {pattern.format(row=row, config=run.config)}" if pattern else ""


def _rare_ngrams(run: RunFolder, caption: str) -> str:
    """The unigrams and bigrams of a caption that are outside the vocabulary."""
    table = np.load(run.path("tables", "vocabulary.npy"), mmap_mode="r")

    def is_rare(hashed: int) -> bool:
        at = int(np.searchsorted(table, np.uint64(hashed)))
        return at == len(table) or int(table[at]) != hashed

    grams = zip(words.ngrams_of(caption), words.ngram_hashes(caption), strict=True)
    rare = list(dict.fromkeys(gram for gram, hashed in grams if is_rare(hashed)))
    return "rare: " + ", ".join(f'"{gram}"' for gram in rare[:10]) + (f" and {len(rare) - 10} more" if len(rare) > 10 else "")
