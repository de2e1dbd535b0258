"""What released numbers say. Nothing here reads a record, so the curator and the analyst both use it."""
