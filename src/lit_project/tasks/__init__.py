"""Tasks: LightningModules that train a model on data. They know nothing of any dataset."""
