"""How many cores this process may use."""

import os
from pathlib import Path

from altalign.machine import control_groups


def cores(root: Path = Path("/")) -> int:
    """The number of cores this process may run on, or fewer if its control groups limit its CPU time."""
    found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([found, *_quotas(root)]))


def _quotas(root: Path) -> list[int]:
    """The CPU quota of each control group of this process (both versions), in cores, rounded up."""
    found = []
    for place, is_first_version in control_groups.of_process("cpu", root):
        try:
            if is_first_version:
                quota, period = (
                    (place / f"cpu.cfs_{name}_us").read_text(encoding="utf-8").strip() for name in ("quota", "period")
                )
            else:
                quota, period = (place / "cpu.max").read_text(encoding="utf-8").split()
        except (OSError, ValueError):
            continue
        if quota.isdecimal() and period.isdecimal() and int(period):  # "max", or -1, is none
            found.append(-(-int(quota) // int(period)))
    return found
