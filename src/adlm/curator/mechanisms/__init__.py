"""The mechanisms: each reads records, is charged, and releases noisy numbers."""
