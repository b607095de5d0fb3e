"""How long training takes."""

from time import perf_counter


class Clock:
    """Seconds of laps, without what lies between a pause and its end."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self._mark = perf_counter()

    def lap(self) -> None:
        """Counts the time since the mark, and marks anew."""
        now = perf_counter()
        self.seconds += now - self._mark
        self._mark = now

    def skip(self) -> None:
        """Marks anew: what lies before does not count."""
        self._mark = perf_counter()
