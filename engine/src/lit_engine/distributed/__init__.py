"""Distributed training: ranks, connecting the processes of a run, and sharded models."""
