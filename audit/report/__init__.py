"""The report of a run, `RUN/report.html`: numbers from what the stages wrote while they ran, and a page of one file."""
