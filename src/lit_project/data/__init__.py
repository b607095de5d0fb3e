"""LightningDataModules that do not depend on a specific model."""
