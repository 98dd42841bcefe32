"""The contract: schemas, reasons, counts, keys, shard format, settings, errors, command line. Imports nothing of ours."""

__version__ = "0.1.0"
