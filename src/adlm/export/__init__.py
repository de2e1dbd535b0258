"""Serving of models: predictions, ONNX files and verification of artefacts."""
