"""Data: LightningDataModules, a file per family. They know nothing of any model."""
