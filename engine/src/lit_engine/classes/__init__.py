"""Resolves class names, and restricts which classes a checkpoint may refer to."""
