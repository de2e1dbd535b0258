"""Settings from public quantities: number of records, classes, budget, features."""
