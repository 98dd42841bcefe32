"""The policy that a trial writes, `policy.toml`: settings, the input by its fingerprint, and what is predicted.

Somebody reads the trial and sets `approved = true`; `altalign curate --policy FILE` runs for that input and these
settings alone, and says at its end where the result left the intervals.
"""

import hashlib
import json
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from altalign import storage, terminal
from altalign.curation import CurateConfig
from altalign.errors import UsageError
from altalign.pipelines.opening.grounds import grounds_of
from altalign.pipelines.run.units import Run
from altalign.settings import dump
from altalign.stages import STAGES

VERSION = 1
_HEAD = """\
# What a trial predicts of this curation. Read report.html beside this file, then set approved = true, and run
#   {command}
"""
_TABLES = ("sample", "input", "settings", "predicted")


class Policy(NamedTuple):
    """A policy as it was read: where from, its settings, and the rest of it."""

    path: str
    config: CurateConfig
    config_path: str  # beside which modules of the run's own are
    said: Mapping[str, Any]


def fingerprint(run: Run) -> dict[str, Any]:
    """The input of a run: how many files, their bytes, and a digest of names, sizes and versions of all of them."""
    stamps = [(file.path, stamp) for file, stamp in zip(run.files, run.stamps(), strict=True)]
    said = json.dumps([[path, *stamp.to_json()] for path, stamp in stamps]).encode()
    return {
        "files": len(stamps),
        "bytes": sum(stamp.size for _, stamp in stamps),
        "fingerprint": hashlib.sha256(said).hexdigest(),
    }


def digest_of(run: Run) -> str:
    """A digest of all that a result rests on: settings, names of files, versions."""
    return grounds_of(run.config, run.files, run.modules)[STAGES[-1]].digest


def write(
    path: str, run: Run, config_path: str, sample: Mapping[str, Any], predicted: Sequence[dict[str, Any]]
) -> None:
    """Write a policy that nobody has approved."""
    said = {
        "version": VERSION,
        "approved": False,
        "config": config_path,
        "rests_on": digest_of(run),
        "sample": dict(sample),
        "input": fingerprint(run),
        "settings": run.config.model_dump(mode="json"),
        "predicted": list(predicted),
    }
    head = _HEAD.format(command=terminal.command("curate", "--policy", path))
    storage.write_bytes(path, (head + "\n" + dump(said)).encode())


def read(path: str, overrides: Sequence[str] = ()) -> Policy:
    """Read a policy that is approved.

    Raises:
        UsageError: it cannot be read, is none, or nobody has approved it.
    """
    try:
        said = tomllib.loads(storage.read_bytes(path).decode("utf-8-sig"))
    except OSError as error:
        raise UsageError(
            f"--policy {path}: cannot be read ({error.strerror or error}); `altalign trial CONFIG` writes one"
        ) from None
    except ValueError as error:
        raise UsageError(f"--policy {path}: not TOML: {error}") from None
    if said.get("version") != VERSION or not all(name in said for name in _TABLES):
        raise UsageError(f"--policy {path}: no policy of this version; `altalign trial CONFIG` writes one")
    if said.get("approved") is not True:
        raise UsageError(
            f"--policy {path}: approved = {json.dumps(said.get('approved'))}; read the trial's report, and set "
            "approved = true"
        )
    config = CurateConfig.from_values(said["settings"], where=f"{path} settings", overrides=overrides)
    return Policy(path, config, str(said.get("config", path)), said)


def check(policy: Policy, run: Run) -> None:
    """Refuse a policy that is not of this input, or of other settings.

    Raises:
        UsageError: it is not.
    """
    there, now = policy.said["input"], fingerprint(run)
    if there != now:
        sizes = [f"{each.get('files', 0):,} files of {each.get('bytes', 0):,} bytes" for each in (there, now)]
        what = f"{sizes[0]}, now {sizes[1]}" if sizes[0] != sizes[1] else "other versions of the same files"
        raise UsageError(f"--policy {policy.path}: the policy of another input ({what}); try it anew: altalign trial")
    if policy.said.get("rests_on") != digest_of(run):
        raise UsageError(
            f"--policy {policy.path}: its settings, or files that they name, have changed since the trial; try them "
            "anew: altalign trial"
        )
