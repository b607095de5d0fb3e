"""Support for distributed training, including ranks, process connections and sharded models."""
