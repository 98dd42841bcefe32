"""What a run keeps of its fetching: journal, log, progress."""
