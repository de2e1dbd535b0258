"""Private files, read row by row: CSV, Parquet, and who contributed which record."""
