"""The scorers of settings, by their kind; what is wrong with one is a line before any work."""

import hashlib
import json
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from altalign.errors import UsageError
from altalign.pipelines.score import embeddings, language, plain
from altalign.pipelines.score.scorer import Scorer
from altalign.settings.score import ScoreConfig, ScoreSettings

VERSION = 1  # of what scores are; raised where the same settings would give other values

_KINDS: dict[str, Callable[[ScoreSettings, str], Scorer]] = {
    "text": plain.text,
    "image": plain.image,
    "noise": plain.noise,
    "language": language.language,
    "similarity": embeddings.similarity,
    "linear": embeddings.linear,
}


def loaded(config: ScoreConfig, config_path: str) -> list[Scorer]:
    """The scorers of a settings file, with their models.

    Raises:
        UsageError: a file or a package is missing, or they do not fit; or two scores have a column of the same name.
    """
    scorers = [_loaded(each, f"{config_path} [[score]] {each.name}", config_path) for each in config.score]
    owners = dict[str, str]()
    for scorer in scorers:
        for column in scorer.columns.names:
            if (other := owners.setdefault(column, scorer.name)) != scorer.name:
                raise UsageError(f"{config_path}: {other} and {scorer.name} both have a column {column}; rename one")
    return scorers


def _loaded(of: ScoreSettings, where: str, config_path: str) -> Scorer:
    return plain.own(of, where, config_path) if of.kind == "own" else _KINDS[of.kind](of, where)


@lru_cache(maxsize=2)
def in_worker(settings: str, config_path: str) -> list[Scorer]:
    """The scorers of settings as JSON, loaded once in a process."""
    return loaded(ScoreConfig.model_validate_json(settings), config_path)


def digest(of: ScoreSettings, scorer: Scorer) -> str:
    """What the values of a score depend on beside the samples, as one number."""
    columns = [[each.name, str(each.type)] for each in scorer.columns]
    said: Any = [VERSION, of.kind, columns, dict(scorer.rests_on)]
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()
