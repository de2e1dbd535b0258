"""Readers of private files: CSV, Parquet, images, vectors, and bounded contributions of persons."""
