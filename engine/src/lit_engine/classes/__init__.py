"""Classes by name, and which classes a checkpoint may name."""
