"""The library under a project on PyTorch Lightning."""
