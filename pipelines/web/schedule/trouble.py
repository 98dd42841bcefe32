"""Why a try brought nothing, and what follows from it."""

from dataclasses import dataclass

from altalign.data.reasons import DropReason


@dataclass(frozen=True)
class Trouble:
    """How a try failed, or why a host is not asked."""

    reason: DropReason
    detail: str
    http_code: int | None = None


class TryError(Exception):
    """A try that brought nothing.

    Attributes:
        trouble: why.
        is_final: whether another try would bring the same.
        wait_s: seconds until the next try; None: a random pause.
        is_counted: whether it counts as one of `fetch.retries`.
        leads_nowhere: whether a redirect is at fault, to what may not or cannot be asked for.
    """

    def __init__(
        self,
        trouble: Trouble,
        *,
        is_final: bool = False,
        wait_s: float | None = None,
        is_counted: bool = True,
        leads_nowhere: bool = False,
    ):
        super().__init__(trouble.detail)
        self.trouble, self.is_final, self.wait_s = trouble, is_final, wait_s
        self.is_counted, self.leads_nowhere = is_counted, leads_nowhere
