"""The hosts of a run's images, and how many were fetched: `audit/hosts.parquet`, from a sample chosen by image_id."""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from altalign.data.audit_tables import HOSTS
from altalign.filters.one_url import host_of
from altalign.pipelines.run import outputs
from altalign.pipelines.run.units import Run

IMAGES_AT_MOST = 65_536  # about, in the sample
MOST = 100  # hosts

Counted = Mapping[str, tuple[int, int, int]]  # images, fetched, kept, by host


def count(
    image_ids: Iterable[str], urls: Iterable[str | None], fetched: Iterable[bool], kept: Iterable[bool], *, one_in: int
) -> Counted:
    """Count the images of the sample by host; one row an image, ids in hex."""
    found: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for image_id, url, is_fetched, is_kept in zip(image_ids, urls, fetched, kept, strict=True):
        if int(image_id[:16], 16) * one_in < 1 << 64:
            of_host = found[host_of(url or "")]
            for number, holds in enumerate((True, is_fetched, is_kept)):
                of_host[number] += holds
    return {host: (images, came, stayed) for host, (images, came, stayed) in sorted(found.items())}


def write(run: Run, parts: Iterable[Counted], *, one_in: int) -> None:
    """Write `audit/hosts.parquet`: the hosts with the most images, sorted by that number, then by name."""
    total: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for part in parts:
        for host, numbers in part.items():
            total[host] = [a + b for a, b in zip(total[host], numbers, strict=True)]
    most = sorted(total.items(), key=lambda entry: (-entry[1][0], entry[0]))[:MOST]
    rows = [
        {"host": host, "images": images, "fetched": came, "kept": stayed, "sampled_one_in": one_in}
        for host, (images, came, stayed) in most
    ]
    outputs.write_audit(run, HOSTS, rows)
