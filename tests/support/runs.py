"""Runs that nothing was done in yet."""

from pathlib import Path
from typing import Any

from altalign.pipelines.run.units import Run
from altalign.settings.curate import CurateConfig


def run_of(folder: Path, **sections: Any) -> Run:
    """A run of an input that is not there, with these sections of settings."""
    return Run(str(folder), CurateConfig.from_values({"input": {"paths": ["none"]}, **sections}, where="test"), ())
