"""Reads a run folder: explanation, status, report, comparison. No Beam.

Called, it is `altalign.python.audit`, so that `altalign.audit(a, b)` works beside `altalign.audit.…` (ADR 19).
"""

import sys
from types import ModuleType
from typing import Any


class _Audit(ModuleType):
    def __call__(self, *runs: Any, **named: Any) -> Any:
        from altalign import python

        return python.audit(*runs, **named)


sys.modules[__name__].__class__ = _Audit
