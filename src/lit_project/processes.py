"""Which of several processes this is."""

from lightning.pytorch.utilities import rank_zero_only


def is_first() -> bool:
    """Whether this process has global rank 0, also before a strategy has started."""
    return getattr(rank_zero_only, "rank", 0) == 0


def print_once(text: str) -> None:
    """Prints in the first process only."""
    if is_first():
        print(text, flush=True)
