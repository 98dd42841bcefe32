"""The report of a run, `RUN/report.html`: one file, made from the numbers that the stages wrote while they ran."""
