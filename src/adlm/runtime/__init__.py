"""What every package uses and no package owns: artefacts on disk, progress, memory."""
