"""Resolving class names, and restricting which classes a checkpoint may refer to."""
