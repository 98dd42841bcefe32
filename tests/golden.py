"""The golden cases of tests/cases, as values: whatever judges candidates can be held against them."""

import tomllib
from pathlib import Path
from typing import Any

from tests.reference.curation import Candidate, Settings

CASES = Path(__file__).parent / "cases"


def caption_cases() -> list[dict[str, Any]]:
    """The cases of captions.toml."""
    return tomllib.loads((CASES / "captions.toml").read_text(encoding="utf-8"))["caption"]


def pool_cases() -> list[dict[str, Any]]:
    """The cases of verdicts.toml."""
    return tomllib.loads((CASES / "verdicts.toml").read_text(encoding="utf-8"))["pool"]


def candidates_of(case: dict[str, Any]) -> list[Candidate]:
    """The candidates of a pool, positions counted from 0."""
    return [
        Candidate(
            image_url=row["url"].ljust(row.get("url_bytes", 0), "u") if "url" in row else None,
            caption_raw=row.get("caption"),
            page_url=row.get("page"),
            source=row.get("source", "table"),
            position=position,
            image_sha256=row.get("sha256"),
            kind=case.get("kind", "table"),
        )
        for position, row in enumerate(case["rows"])
    ]


def settings_of(case: dict[str, Any]) -> Settings:
    """The settings of a pool, over the defaults."""
    return Settings(**case["settings"])


def failed_of(row: dict[str, Any]) -> list[str]:
    """Every reason that should hold for a row."""
    return row.get("failed", [] if row["verdict"] == "kept" else [row["verdict"]])
