"""How many cores this process may use; the control groups that limit it, on systems that have them."""

import os
from collections.abc import Iterator
from pathlib import Path


def cores(root: Path = Path("/")) -> int:
    """The number of cores this process may run on, or fewer if its control groups limit its CPU time."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([available, *_quotas(root)]))


def _quotas(root: Path) -> list[int]:
    """The CPU quota of each control group of this process (both versions), in cores, rounded up."""
    quotas = []
    for place, is_first_version in control_groups("cpu", root):
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
            quotas.append(-(-int(quota) // int(period)))
    return quotas


def control_groups(controller: str, root: Path = Path("/")) -> Iterator[tuple[Path, bool]]:
    """The folders of this process's group and of its parents, for a controller; and whether they are of version 1."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for _, controllers, path in (line.split(":", 2) for line in lines):
        if controllers and controller not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / controllers
        group = mount / path.lstrip("/")
        for place in [group, *(above for above in group.parents if above.is_relative_to(mount))]:
            yield place, bool(controllers)
