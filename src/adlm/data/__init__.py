"""Readers of private files: CSV, Parquet, images, vectors; public data sets by name."""
