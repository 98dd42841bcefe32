"""The contract: schemas, reasons, counts, keys, shards, settings, errors and command line. It imports no other room."""

__version__ = "0.1.0"
