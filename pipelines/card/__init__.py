"""The data-set card: README.md and croissant.json."""
