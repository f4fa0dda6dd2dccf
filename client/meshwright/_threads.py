"""Many waits at once, with one time limit."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue


def run_all(tasks: Sequence[Callable[[], None]], *, limit_s: float, at_once: int) -> None:
    """Returns when all tasks have ended, or when the time is over; those under way then end unheard.

    The threads are daemons, as those of an executor would hold up the end of the process for a host that hangs.

    Raises:
        BaseException: the exception of a task.
    """
    waiting, ended = deque(tasks), SimpleQueue[BaseException | None]()
    over_at = time.monotonic() + limit_s
    try:
        for _ in range(min(at_once, len(tasks))):
            threading.Thread(target=_work, args=(waiting, ended), name="meshwright-wait", daemon=True).start()
        for _ in tasks:
            error = ended.get(timeout=max(over_at - time.monotonic(), 0.0))
            if error is not None:
                raise error
    except Empty:
        return
    finally:
        waiting.clear()


def _work(waiting: deque[Callable[[], None]], ended: SimpleQueue[BaseException | None]) -> None:
    while True:
        try:
            task = waiting.popleft()
        except IndexError:
            return
        try:
            task()
        except BaseException as error:  # raised again where it is waited for
            ended.put(error)
        else:
            ended.put(None)
