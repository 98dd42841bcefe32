"""The facts of a data-set card: a run's counts, summary and settings, and words for columns, rules and licences."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from altalign.data.counts import Counts
from altalign.data.scores import Score
from altalign.settings.curate import CurateConfig
from altalign.terminal import shown

# What a column of a side-car is, in the card's words.
COLUMNS = {
    "key": "Name of the sample: hash of its image's identity and its caption",
    "image_id": "The image: hash of its URL, or of its bytes where it has none",
    "image_url": "Where the image was found; null where that is not known",
    "caption": "The alt-text, cleaned; as in KEY.txt",
    "page_url": "The page that shows the image; null where that is not known",
    "source": "The input that the pair is of",
    "source_key": "The name of the row in its input, where it has one",
    "extra": "Columns of the input that were kept, a JSON object; null where there are none",
    "width": "Pixels of the stored image",
    "height": "The same",
    "format": "Of the stored image",
    "bytes": "Of the stored image",
    "sha256": "Of the stored image, in hex",
    "found_sha256": "Of the image's bytes as they were found",
    "words": "Words of the caption",
    "tar_offset": "Where the image's bytes begin in the tar",
    "tar_bytes": "How many there are",
}

_SIZES = ("1K", "10K", "100K", "1M", "10M", "100M", "1B", "10B", "100B", "1T")  # each ten times the one before

# Identifiers that the Hub takes, of licences that data have; any other one is "other" there, with its name beside it.
_HUB_LICENCES = """
    apache-2.0 mit afl-3.0 artistic-2.0 bsl-1.0 bsd bsd-2-clause bsd-3-clause bsd-3-clause-clear c-uda cc cc0-1.0
    cc-by-2.0 cc-by-2.5 cc-by-3.0 cc-by-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0
    cc-by-nd-4.0 cc-by-nc-nd-3.0 cc-by-nc-nd-4.0 cc-by-nc-sa-2.0 cc-by-nc-sa-3.0 cc-by-nc-sa-4.0 cdla-sharing-1.0
    cdla-permissive-1.0 cdla-permissive-2.0 etalab-2.0 eupl-1.1 eupl-1.2 gfdl odc-by odbl pddl unlicense other unknown
"""
_SPDX_ON_THE_HUB = {"odc-by-1.0": "odc-by", "odbl-1.0": "odbl", "pddl-1.0": "pddl", "c-uda-1.0": "c-uda"}


class CardFacts(NamedTuple):
    """What a card is made of."""

    config: CurateConfig
    counts: Counts
    summary: Mapping[str, Any]  # summary.json
    notes: Sequence[str]  # which of ALIGN's rules drop nothing in this run, and why
    digest: str = ""  # of the list of all files: SHA-256 in hex
    scores: Sequence[Score] = ()  # beside the shards
    is_grown: bool = False  # there are shards of several generations
    conditions: Mapping[str, str] = MappingProxyType({})  # of a selection, in words, by the reason of what fails

    @property
    def name(self) -> str:
        """Name of the data set; without control characters, whatever sources are called."""
        sources = list(dict.fromkeys(each.source for each in self.config.input))
        return self.config.card.name or f"Image-text pairs from {', '.join(map(shown, sources))}"

    @property
    def is_one_format(self) -> bool:
        """Whether readers that want one kind of image can open the tars."""
        return self.config.shards.portable


def model_of(score: Score) -> str:
    """What a score rests on, as its settings name it, without the folders that it was in."""
    settings = score.facts.get("settings", {})
    names = [str(settings[name]) for name in ("model", "weights", "run", "function") if settings.get(name)]
    said = (":".join(part.rstrip("/").rpartition("/")[2] for part in name.split(":")) for name in names)
    return ", ".join(map(shown, said))


def hub_licence(licence: str) -> str:
    """The Hub's identifier of a licence: "other" where it has none, "unknown" where none is given."""
    known = licence.lower()
    known = _SPDX_ON_THE_HUB.get(known, known)
    return known if known in _HUB_LICENCES.split() else "other" if known else "unknown"


def size_category(pairs: int) -> str:
    """The Hub's category of so many pairs."""
    place = max(0, len(str(pairs)) - 3)
    if place == 0:
        return "n<1K"
    return f"{_SIZES[place - 1]}<n<{_SIZES[place]}" if place < len(_SIZES) else "n>1T"
