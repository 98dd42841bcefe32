"""Which hosts the images of a run are of, and how many came: `audit/hosts.parquet`, of a sample of images that their ids have chosen."""

from collections import defaultdict
from collections.abc import Iterable, Mapping

import pyarrow as pa

from altalign.audit_tables import HOSTS
from altalign.pipelines.run import outputs
from altalign.pipelines.run.units import Run
from altalign.pipelines.web.kept.log import host_of

IMAGES_AT_MOST = 65_536  # about, in the sample
MOST = 100


Counted = Mapping[str, tuple[int, int, int]]  # images, fetched, kept, by host


def count(
    image_ids: Iterable[str], urls: Iterable[str | None], fetched: Iterable[bool], kept: Iterable[bool], *, one_in: int
) -> Counted:
    """Images of the sample by host; ids in hex, one row an image."""
    found: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for image_id, url, is_fetched, is_kept in zip(image_ids, urls, fetched, kept, strict=True):
        if int(image_id[:16], 16) * one_in < 1 << 64:
            of_host = found[host_of(url)]
            for number, holds in enumerate((True, is_fetched, is_kept)):
                of_host[number] += holds
    return {host: (images, came, stayed) for host, (images, came, stayed) in sorted(found.items())}


def write(run: Run, parts: Iterable[Counted], *, one_in: int) -> None:
    """`audit/hosts.parquet`: the hosts of the most images, of as many those first by name."""
    total: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for part in parts:
        for host, numbers in part.items():
            total[host] = [a + b for a, b in zip(total[host], numbers, strict=True)]
    most = sorted(total.items(), key=lambda entry: (-entry[1][0], entry[0]))[:MOST]
    rows = [
        {"host": host, "images": images, "fetched": came, "kept": stayed, "sampled_one_in": one_in}
        for host, (images, came, stayed) in most
    ]
    outputs.write_audit(run, HOSTS, pa.Table.from_pylist(rows, schema=HOSTS.schema))
