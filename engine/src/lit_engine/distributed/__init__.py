"""Distributed training with ranks, connections between the processes of a run, and sharded models."""
