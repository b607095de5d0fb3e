"""Several processes: who is first, how they find each other, and sharded models."""
