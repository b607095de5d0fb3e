"""Handlers for signals that end a run, such as SIGINT (Ctrl-C) and SIGTERM."""

import os
import signal
import threading
from types import FrameType
from typing import Any

from lit_engine.distributed.processes import SIGNALS, is_first


class Interrupted(BaseException):
    """Exception for a signal that ends the command. `status` is the exit status that a shell reports."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.status = 128 + number


class Signals:
    """Handlers for Ctrl-C, SIGTERM, SIGUSR1 and SIGHUP, which end a run.

    Outside of training, a signal raises Interrupted immediately. During training, signals are `deferred` until the run
    can be saved, except for a second Ctrl-C. Signals that were ignored at the start (`nohup`) remain ignored.

    Attributes:
        number: first signal that was received, or 0.
        deferred: whether the training loop checks for signals itself.
        is_bar_shown: whether a progress bar occupies the last two lines of the terminal. A message overwrites the bar.
    """

    def __init__(self) -> None:
        self.number, self.deferred, self.is_bar_shown = 0, False, False
        self._before: dict[int, Any] = {}

    def install(self) -> None:
        """Replace the handlers. This method is called again after Lightning has installed its own handlers."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in SIGNALS:
            handler = signal.getsignal(number)
            if handler is not signal.SIG_IGN and handler != self.receive:
                self._before.setdefault(number, handler)
                signal.signal(number, self.receive)

    def remove(self, *kept: int) -> None:
        """Restore the earlier handlers of all signals except those in `kept`."""
        for number in self._before.keys() - kept:
            signal.signal(number, self._before.pop(number))

    def receive(self, number: int, frame: FrameType | None) -> None:
        again = number == self.number == signal.SIGINT
        self.number = self.number or number
        if again or not self.deferred:
            raise Interrupted(number)
        if number == signal.SIGINT and is_first():
            # print is not reentrant, and the signal may have interrupted it.
            message = b"finishing this step and saving; press Ctrl-C again to stop immediately\n"
            clear = b"\r\x1b[1A\x1b[J"  # erases the progress bar
            os.write(2, clear + message + b"\n" if self.is_bar_shown else b"\n" + message)
