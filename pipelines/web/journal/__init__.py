"""What a run keeps about its fetching: journal, log, progress."""
