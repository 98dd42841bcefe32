"""The control groups of this process, on systems that have them, and their limits."""

from collections.abc import Iterator
from pathlib import Path


def of_process(controller: str, root: Path = Path("/")) -> Iterator[tuple[Path, bool]]:
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
