"""Opening a run folder: what is there, whether it fits the settings, and what is done anew."""
