"""Frozen public feature maps h0."""
