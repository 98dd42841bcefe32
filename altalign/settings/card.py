"""Settings of the data-set card, which no stage reads."""

import re

from pydantic import Field, field_validator

from altalign.settings.common import Settings


class CardSettings(Settings):
    """Facts for the data-set card that no stage can know (ours)."""

    name: str = ""
    """Name of the data set; `""`: "Image-text pairs from" its sources."""
    licence: str = ""
    """Licence: an identifier of SPDX (`CC-BY-4.0`) or Hugging Face (`cc-by-4.0`). `""`: unknown."""
    languages: list[str] = Field(default_factory=list)
    """Languages of captions as BCP 47 tags: `["en", "pt-BR"]`. Nothing detects them."""
    contact: str = ""
    """Address or URL for removal requests."""

    @field_validator("name", "licence", "contact")
    @classmethod
    def _is_one_line(cls, value: str) -> str:
        if not value.isprintable() or value != value.strip():
            repair = "give one without line breaks, control characters or spaces at its ends"
            raise ValueError(f"{value!r} is no line of text; {repair}")
        return value

    @field_validator("licence")
    @classmethod
    def _licence_is_an_identifier(cls, value: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9.+-]*", value):
            repair = 'give one of SPDX or Hugging Face, such as "CC-BY-4.0", "other" or "unknown"'
            raise ValueError(f"{value!r} is no identifier of a licence; {repair}")
        return value

    @field_validator("languages")
    @classmethod
    def _languages_are_tags(cls, value: list[str]) -> list[str]:
        for entry in value:
            if not re.fullmatch(r"[a-z]{2,3}(-[A-Za-z0-9]{1,8})*", entry):
                raise ValueError(f'{entry!r} is no tag of a language; give tags of BCP 47, such as "en" or "pt-BR"')
        return value
