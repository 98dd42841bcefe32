"""Opens a set of captioned images by what is at its path."""

from collections.abc import Callable

from altalign import storage
from altalign.errors import UsageError
from altalign.eval import image_sets, tables
from altalign.eval.image_sets import ImageSet
from altalign.eval.settings import CaptioningSet, RetrievalSet
from altalign.eval.web_folders import shards_of


def opened(chosen: RetrievalSet, held_out: Callable[[int], ImageSet] | None) -> ImageSet:
    """The set of these settings.

    Raises:
        UsageError: nothing is there, or it is no set of captioned images.
        UnreadableError: it is damaged, or nothing of it is left.
    """
    if chosen.held_out:
        if held_out is None:
            raise UsageError("held_out: no training run is evaluated; give a path")
        images = held_out(chosen.images_at_most)
    else:
        images = at(chosen, chosen.path)
    return images.with_captions(at_most=chosen.captions_at_most, repeated=chosen.repeated_captions)


def at(chosen: RetrievalSet | CaptioningSet, path: str) -> ImageSet:
    """The set at a path, with all captions. Raises as `opened`."""
    at_most = chosen.images_at_most
    columns = {"image_column": chosen.image_column, "caption_column": chosen.caption_column}
    if storage.kind(path) == "folder":
        if (shards := shards_of(path, chosen.split)) is not None:
            return image_sets.webdataset_set(shards, images_at_most=at_most)
        if files := tables.files_of(path):
            return image_sets.parquet_set(files, **columns, images_at_most=at_most)
        return image_sets.run_set([path], images_at_most=at_most)
    if path.endswith(".json"):
        return image_sets.karpathy_set(path, images=chosen.images, split=chosen.split, images_at_most=at_most)
    if path.endswith(".tar"):
        return image_sets.webdataset_set([path], images_at_most=at_most)
    return image_sets.parquet_set([path], **columns, images_at_most=at_most)
