"""Reads a run folder: explanation, status, report. No Beam."""
