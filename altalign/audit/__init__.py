"""Reads a run folder: explanation, status, report, comparison. No Beam.

Called, it is `altalign.python.audit`, so that `altalign.audit(a, b)` works beside `altalign.audit.…` (ADR 19).
"""

import sys
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from altalign.audit.checks import Check
    from altalign.audit.compare import Comparison
    from altalign.python import Folder


class _Audit(ModuleType):
    def __call__(self, run: "Folder", other: "Folder | None" = None) -> "list[Check] | Comparison":
        from altalign import python

        return python.audit(run, other) if other is not None else python.audit(run)


sys.modules[__name__].__class__ = _Audit
