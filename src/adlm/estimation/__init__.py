"""Estimates from released numbers. Nothing here reads a record, so curator and analyst both use it."""
