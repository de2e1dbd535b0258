"""Shared infrastructure: artefacts on disk, progress, memory, devices."""
