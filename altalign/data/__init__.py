"""What runs hold, declared once: schemas, reasons, counts, keys, shards, listings, scores."""
