"""LightningDataModules, which do not depend on a specific model."""
