"""The report of a run, `RUN/report.html`: one file, made from the numbers that the stages wrote while they ran."""

from pathlib import Path

FOLDER = Path(__file__).parent  # of `templates/` and `static/`
