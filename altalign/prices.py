"""Settings of what hours and gigabytes cost, which a trial reckons with."""

from typing import Annotated

from pydantic import Field

from altalign.settings import Settings

Machines = Annotated[int, Field(ge=1)]


class PricesSettings(Settings):
    """What `altalign trial` reckons hours and cost with; no result rests on it (ours)."""

    currency: Annotated[str, Field(min_length=1)] = "EUR"
    """Of all prices."""
    machine_hour: Annotated[float, Field(ge=0)] = 0.0
    """Of one machine for an hour."""
    gigabyte_fetched: Annotated[float, Field(ge=0)] = 0.0
    """Of a gigabyte that is fetched from the web."""
    gigabyte_month: Annotated[float, Field(ge=0)] = 0.0
    """Of a gigabyte that is kept for a month: one month of shards is reckoned."""
    cores: Annotated[int, Field(ge=0)] = 0
    """Cores of a machine, as fast as those of the trial; `0`: as many as the trial's."""
    machines: Annotated[list[Machines], Field(min_length=1)] = Field(default_factory=lambda: [1, 4, 16])
    """For which numbers of machines."""
