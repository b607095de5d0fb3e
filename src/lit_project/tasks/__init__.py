"""LightningModules that train a model. They do not depend on a specific dataset."""
