"""Exports a trained model to files that run without this project (`.pt2`, ONNX or safetensors)."""
