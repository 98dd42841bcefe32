"""The verbs of the command line that need several rooms: one file a verb."""
