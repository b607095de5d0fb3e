"""Base classes for data modules, and samplers that define the order of samples."""
