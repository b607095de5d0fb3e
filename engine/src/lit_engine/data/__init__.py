"""The base classes of data modules, and the order of their samples."""
