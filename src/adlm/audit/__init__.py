"""Attacks on the mechanisms: lower bounds on epsilon, and controls that must be caught."""
