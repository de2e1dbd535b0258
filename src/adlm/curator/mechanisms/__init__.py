"""The mechanisms: each reads records, is charged, and gives noisy numbers."""
