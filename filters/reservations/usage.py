"""Content-Usage (draft-ietf-aipref-vocab-08, -attach-05) and Content-Signal (contentsignals.org)."""

from collections.abc import Iterable

YES_NO = {"content-usage": ("y", "n"), "content-signal": ("yes", "no")}
WORDS = ("train-ai", "train-genai", "bots", "search", "ai-train")


def opposes(notation: str, values: Iterable[str], purpose: str) -> bool:
    """Whether the values of one header, or of one line, oppose a purpose.

    They are dictionaries of structured fields (RFC 9651), such as `train-ai=n, search=y`. A member that cannot be read
    says nothing, and of several with the same key the last counts.
    """
    says = choices(notation, values)
    if notation == "content-signal":
        return says.get("search" if purpose == "search" else "ai-train") is False
    # Drafts 02 and 03 also had `bots` for every use, and `train-genai` for a part of training.
    every = says.get("bots")
    if purpose == "search":
        return says.get("search", every) is False
    generative = says.get("train-genai") is False or says.get("train-ai", every) is False
    other = "train-ai" not in says and every is False
    return {"train": generative or other, "train-generative": generative, "train-other": other}[purpose]


def choices(notation: str, values: Iterable[str]) -> dict[str, bool]:
    """What is allowed and what is not, by key."""
    yes, no = YES_NO[notation]
    found = dict[str, bool]()
    for member in (member for value in values for member in value.split(",")):
        key, _, choice = (part.strip() for part in member.partition(";")[0].lower().partition("="))
        found.pop(key, None)
        if choice in (yes, no):
            found[key] = choice == yes
    return found
