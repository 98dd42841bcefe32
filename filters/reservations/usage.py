"""`content-usage` (draft-ietf-aipref-vocab-08, -attach-05) and `content-signal` (contentsignals.org).

Values are dictionaries of structured fields (RFC 9651), such as `train-ai=n, search=y`. A member that cannot be read
says nothing, and of several with the same key the last counts.
"""

from collections.abc import Sequence

from altalign.data.preferences import Said

YES_NO = {"content-usage": ("y", "n"), "content-signal": ("yes", "no")}
WORDS = ("train-ai", "train-genai", "bots", "ai-use", "search", "ai-train", "ai-input")


def oppose(said: Sequence[Said], purpose: str, _token: str) -> bool:
    """Whether statements oppose a purpose: headers, or lines of robots.txt."""
    return any(_opposes(each, purpose) for each in said)


def _opposes(said: Said, purpose: str) -> bool:
    """Of lines, that with the longest path decides that says something of the purpose; of the same path, the no."""
    lines = map(parted, said.value.split("\n"))
    found = [(len(path), says(said.notation, values, purpose)) for path, values in lines]
    return max(((length, not allows) for length, allows in found if allows is not None), default=(0, False))[1]


def parted(line: str) -> tuple[str, str]:
    """The path and the dictionary of a line of robots.txt; a header has no path."""
    parts = line.split(maxsplit=1)
    return (parts[0], parts[1]) if line.startswith("/") and len(parts) > 1 else ("/", line)


def says(notation: str, values: str, purpose: str) -> bool | None:
    """Whether a dictionary allows a purpose; None: it does not say."""
    choices = _choices(notation, values)
    if notation == "content-signal":
        return choices.get("search" if purpose == "search" else "ai-train")
    # Drafts 03 and 04 had `bots` for every use, and 02 and 03 `train-genai` for generative training, as a part of
    # `train-ai`, which is generative training alone by now.
    every = choices.get("bots")
    if purpose == "search":
        return choices.get("search", every)
    if purpose == "train-other":
        return True if choices.get("train-ai") else every
    return False if choices.get("train-genai") is False else choices.get("train-ai", every)


def _choices(notation: str, values: str) -> dict[str, bool]:
    yes, no = YES_NO[notation]
    choices = dict[str, bool]()
    for member in values.split(","):
        key, _, choice = (part.strip() for part in member.partition(";")[0].lower().partition("="))
        choices.pop(key, None)
        if choice in (yes, no):
            choices[key] = choice == yes
    return choices
