"""Samples of WebDataset tars: the members of one name up to its first dot. Needs no torch."""

import json
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from altalign import storage
from altalign.errors import UnreadableError
from altalign.eval.places import IMAGES, Place, digest, reading
from altalign.shards import BESIDE


@dataclass
class Sample:
    """The members of one sample that a set is made of.

    Attributes:
        image: SHA-256 and place of the first member that is an image by its name; None where there is none.
        texts: content of other members by their extension: `txt`, `cls`, `json`.
    """

    key: str
    image: tuple[str, Place] | None = None
    texts: dict[str, bytes] = field(default_factory=dict)

    @property
    def txt(self) -> str:
        """The text of KEY.txt."""
        return self.texts.get("txt", b"").decode("utf-8", "replace")

    def columns(self, path: str) -> dict[str, Any]:
        """What KEY.json has.

        Raises:
            UnreadableError: it is not JSON.
        """
        try:
            columns = json.loads(self.texts.get("json", b"{}"))
        except (ValueError, RecursionError) as error:
            raise UnreadableError(f"{path}: {self.key}.json: not JSON ({error}); make the tar anew") from None
        return columns if isinstance(columns, dict) else {}


def samples(path: str) -> Iterator[Sample]:
    """The samples of a tar, not compressed, in its order; files of attributes are samples without an image.

    Raises:
        UnreadableError: it is damaged, or cut.
    """
    found, beside = Sample(""), list[Sample]()
    with reading(path, "tar"), storage.open_read(path) as file, tarfile.open(fileobj=file, mode="r:") as tar:
        while (member := tar.next()) is not None:
            tar.members.clear()  # type: ignore[attr-defined]  # tarfile keeps all it has met
            folder, _, name = member.name.rpartition("/")
            stem, _, extension = name.partition(".")
            key = f"{folder}/{stem}" if folder else stem
            if member.isfile() and BESIDE.search(member.name):
                beside.append(Sample(member.name))
                continue
            if not member.isfile() or not stem:
                continue
            if key != found.key and found.key:
                yield found
            if key != found.key:
                found = Sample(key)
            if (extension := extension.lower()) in {*IMAGES, "txt", "json", "cls"}:
                file.seek(member.offset_data)
                data = file.read(member.size)
                if len(data) != member.size:
                    raise tarfile.ReadError(f"it ends within {member.name}")
                if extension not in IMAGES:
                    found.texts[extension] = data
                elif found.image is None:
                    place = Place(path, member.offset_data, member.size, f"{path}/{member.name}")
                    found.image = digest(data), place
        file.seek(tar.offset)
        if file.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):  # tarfile ends there without a word
            raise tarfile.ReadError(f"no header of a member, nor zeros, at {tar.offset:,}: it is damaged, or cut")
    yield from [found, *beside] if found.key else beside
