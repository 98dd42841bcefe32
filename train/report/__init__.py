"""Metrics of a training run, and its report, `report.html`: results, curves, noise of pairs."""
