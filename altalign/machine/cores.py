"""How many cores this process may use; the control groups that limit it, on systems that have them."""

import os
from collections.abc import Iterator
from pathlib import Path


def cores(root: Path = Path("/")) -> int:
    """The number of cores this process may run on, or fewer if its control groups limit its CPU time."""
    most = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for place in control_groups(root):
        try:
            quota, period = (place / "cpu.max").read_text(encoding="utf-8").split()
        except (OSError, ValueError):
            continue
        if quota.isdecimal() and period.isdecimal() and int(period):  # "max" is none
            most = min(most, -(-int(quota) // int(period)))
    return max(1, most)


def control_groups(root: Path = Path("/")) -> Iterator[Path]:
    """The folders of this process's group (of version 2) and of its parents."""
    mount = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        if line.startswith("0::"):
            group = mount / line.removeprefix("0::").lstrip("/")
            yield from [group, *(above for above in group.parents if above.is_relative_to(mount))]
