"""Tables: Parquet, Arrow, CSV, TSV and JSON Lines."""
