"""Runs other people's libraries silently and offline."""

import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from altalign.errors import AltalignError, UsageError


@contextmanager
def quiet(name: str = "") -> Iterator[None]:
    """Keeps libraries silent and offline in this block."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    if (transformers := sys.modules.get("transformers")) is not None:
        transformers.utils.logging.disable_progress_bar()
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except (AltalignError, MemoryError):
        raise
    except Exception as error:
        if not name:
            raise
        words = (" ".join(str(error).split()) or type(error).__name__)[:200]
        raise UsageError(f"{name}: cannot be opened ({words}); give a model that its library opens") from error
    finally:
        logging.disable(before)
