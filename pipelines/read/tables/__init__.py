"""Tables: Parquet, CSV, TSV and JSON Lines."""
