"""`export`: a trained net as files that run without this project: `.pt2`, ONNX, safetensors."""
