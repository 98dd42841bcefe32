"""The tries of fetching an image, read from `log/fetch/`."""

import json
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime

from altalign import storage
from altalign.audit.run_folder import RunFolder
from altalign.data.schema import Try

PARTITIONS_AT_MOST = 1 << 16  # of survivors: a power of two, unknown once work/ is deleted


def of_image(run: RunFolder, image_id: str) -> list[Try]:
    """The tries of an image (32 hex digits), in order; empty if the log was deleted."""
    found = list[Try]()
    for path in _files(run, image_id):
        with storage.open_read(path) as file:
            for line in file:
                if image_id.encode() in line:
                    with suppress(ValueError):  # a line cut by a kill
                        found.append(json.loads(line))
    return sorted((each for each in found if each.get("image_id") == image_id), key=lambda each: each["started"])


def _files(run: RunFolder, image_id: str) -> Iterator[str]:
    """The logs of units that may hold an image: names begin with the number of a partition, a range of image_ids."""
    head, partitions = int(image_id[:4], 16), [1 << bits for bits in range(PARTITIONS_AT_MOST.bit_length())]
    numbers = {head * count >> 16 for count in partitions}
    for name in storage.names(run.path("log", "fetch"), ".jsonl"):
        if int(name.partition("-")[0]) in numbers:
            yield run.path("log", "fetch", name)


def told(each: Try, url: str | None) -> str:
    """Describes a try of the image with this URL in one line."""
    when = datetime.fromtimestamp(each["started"], UTC).strftime("%Y-%m-%d %H:%M:%S")
    status = f" {each['status']}" if each["status"] else ""
    end = f"{each['reason']}{status}: {each['detail']}" if each["reason"] else f"fetched, {each['bytes']:,} bytes"
    at = f", at {each['address']}" if each["address"] else ""
    redirected = f", redirected to {each['url']}" if each["url"] != url else ""
    return f"{when} UTC, {each['seconds']:.2f} s: {end}{at}{redirected}"
