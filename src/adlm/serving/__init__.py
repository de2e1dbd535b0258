"""What a trained model is for: predictions, measures, ONNX, and proofs of an artefact."""
