"""Files that stages read and write: Parquet, arrays, ranges of bytes."""
