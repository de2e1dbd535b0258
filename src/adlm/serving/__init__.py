"""Serving of models: predictions, metrics, ONNX files and verification of artefacts."""
