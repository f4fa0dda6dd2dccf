"""A thread that reads a source, places its batches, and returns them in order.

The thread is never more than `buffer_size` batches ahead of the consumer. It uses the settings of its creator,
and ends when its prefetcher is closed or unused. The function that places a batch is an argument; this module is
independent of devices.
"""

from __future__ import annotations

import atexit
import contextvars
import operator
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Final, Self, SupportsIndex

import jax

from meshwright._jax_devices import warn

__all__ = ["Prefetcher"]

_CLOSE_TIMEOUT_S: Final = 5.0
_EXIT_TIMEOUT_S: Final = 5.0
"""How long the process's end waits for sources that are in their next(): ended inside of JAX, a thread aborts it."""

_WAKE_S: Final = 0.5
"""How long a consumer sleeps at a stretch: a signal that came just before it fell asleep is handled by then."""

_SETTINGS: Final = (
    "check_tracer_leaks", "debug_infs", "debug_key_reuse", "debug_nans", "default_device", "default_matmul_precision",
    "default_prng_impl", "disable_jit", "enable_x64", "legacy_prng_key", "log_compiles", "numpy_dtype_promotion",
    "numpy_rank_promotion", "threefry_partitionable", "transfer_guard_device_to_device",
    "transfer_guard_device_to_host", "transfer_guard_host_to_device",
)  # fmt: skip
"""JAX's settings that `with jax.NAME(value)` makes for one thread only; `jax.config.jax_NAME` is what holds here.

Source: jax/_src/config.py, class State. `thread_guard` is left out, since leaving it changes it for all threads.
"""


class Prefetcher(Iterator[Any]):
    """An iterator over the placed batches of a source, which a thread prepares while the consumer computes.

    The thread starts with the first `next()`: creating a prefetcher reads nothing from the source and uses no device
    memory. So you can create one for training and one for evaluation side by side. The thread reads one batch after
    another and holds at most `buffer_size` of them. A batch counts from its request until the consumer gets it. So the
    devices hold at most `buffer_size` batches beside those of the consumer.

    The thread works under the JAX settings (`jax.enable_x64`, `jax.default_device`, `jax.transfer_guard`,
    `jax.set_mesh` …) and the context variables that were in force where the prefetcher was created. The deprecated
    `with mesh:` does not apply to it.

    `next()` raises the source's exception after all earlier batches. The prefetcher is then exhausted, as after the
    last batch and after `close()`. It is also closed at the end of a `with` block, and when it is no longer referenced,
    as after a `break` out of `for batch in prefetch_to_device(…)`. Work that holds Python's global lock does not
    overlap: reading files, NumPy on large arrays and waiting for devices do not hold it.

    Created by `meshwright.placement.prefetch_to_device`.
    """

    def __init__(
        self,
        source: Iterable[Any],
        place: Callable[[Any], Any],
        buffer_size: SupportsIndex,
        stop_placing: Callable[[], None] = lambda: None,
    ) -> None:
        size = operator.index(buffer_size)
        if size < 1:
            raise ValueError(f"buffer_size is {size}; at least 1 batch must be on its way, use 2 if in doubt")
        self._feed = _Feed(iter(source), place, size, _copy_settings(), stop_placing)
        self._abandon = weakref.finalize(self, self._feed.stop)
        self._abandon.atexit = False  # _stop_all does it then, for all together and within a bound

    def __next__(self) -> Any:
        """Returns the next batch, placed.

        Raises:
            StopIteration: the source has no more, something was raised before, or the prefetcher is closed.
            Exception: whatever the source or placing its batch raised, with its traceback.
        """
        return self._feed.take()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self, *, timeout_s: float = _CLOSE_TIMEOUT_S) -> None:
        """Stops the source, drops the waiting batches, and waits until the thread has ended.

        A source that is a generator or another prefetcher is closed, by the thread that runs it. May be called again.

        Args:
            timeout_s: seconds to wait. A source that is still in its `next()` then causes a `ResourceWarning` and is
                not read again. Its thread ends when that `next()` returns, or with the process.

        Raises:
            Exception: the exception of closing the generator.
        """
        self._feed.close(timeout_s)


def _copy_settings() -> Callable[[Callable[[], None]], None]:
    """Returns a runner of functions in any thread, with the settings and context variables of this one."""
    values = {name: getattr(jax.config, f"jax_{name}") for name in _SETTINGS}
    mesh = jax.sharding.get_mesh()
    context = contextvars.copy_context()

    def run(work: Callable[[], None]) -> None:
        with ExitStack() as stack:
            for name, value in values.items():
                stack.enter_context(getattr(jax, name)(value))
            if not mesh.empty:
                stack.enter_context(jax.set_mesh(mesh))
            context.run(work)

    return run


@dataclass(eq=False)
class _Feed:
    """The state shared by the thread and the consumer. The thread refers only to this, so an unreferenced prefetcher is
    collected."""

    _source: Iterator[Any]
    _place: Callable[[Any], Any]
    _buffer_size: int
    _run_as_caller: Callable[[Callable[[], None]], None]
    _stop_placing: Callable[[], None]
    # Its lock may be taken again by its holder: the garbage collector calls stop() from wherever it runs.
    _changed: threading.Condition = field(default_factory=lambda: threading.Condition(threading.RLock()))
    _ready: deque[Any] = field(default_factory=deque)
    _error: BaseException | None = None
    _ended: bool = False
    _stopped: bool = False
    _thread: threading.Thread | None = None
    _close_is_awaited: bool = False
    _close_error: BaseException | None = None

    # ---- the consumer's side ----

    def take(self) -> Any:
        with self._changed:
            if self._thread is None and not self._stopped:
                thread = threading.Thread(target=self._run, name="meshwright-prefetch", daemon=True)
                thread.start()
                self._thread = thread
            while not self._changed.wait_for(lambda: self._ready or self._ended or self._stopped, _WAKE_S):
                if self._thread is not None and not self._thread.is_alive():
                    raise RuntimeError(
                        "the next batch was asked for; the thread that prefetches is not in this process; threads do "
                        "not go along with a fork: make the prefetcher in the process that uses it"
                    )
            if self._ready:
                self._changed.notify_all()
                return self._ready.popleft()
            error, self._error = self._error, None
        try:
            raise StopIteration if error is None else error
        finally:
            del error  # the traceback refers to this frame

    def stop(self) -> None:
        self._stop_placing()
        with self._changed:
            self._stopped = True
            self._error = None
            self._ready.clear()
            self._changed.notify_all()

    def close(self, timeout_s: float) -> None:
        self._close_is_awaited = True
        self.stop()
        if self._thread is None:
            self._close_source()
        elif not self.join(timeout_s):
            warn(
                f"the source {type(self._source).__name__} was still in its next() {timeout_s:g} s after close(); its "
                f"thread ends when that returns: let the source wait with a time limit",
                ResourceWarning,
            )
        error, self._close_error = self._close_error, None
        if error is not None:
            raise error

    def join(self, timeout_s: float) -> bool:
        """Returns whether the thread has ended, or is the calling thread."""
        if self._thread in (None, threading.current_thread()):
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # ---- the thread's side ----

    def _run(self) -> None:
        with _running_lock:
            _running.add(self)
        try:
            self._run_as_caller(self._work)
        except BaseException as error:
            if self._ended:
                raise
            self._end(error)
        finally:
            self._source = iter(())  # its memory is freed now, not with the prefetcher
            with _running_lock:
                _running.discard(self)

    def _work(self) -> None:
        self._end(self._pump())
        self._close_source()

    def _end(self, error: BaseException | None) -> None:
        with self._changed:
            self._ended, self._error = True, None if self._stopped else error
            self._changed.notify_all()

    def _pump(self) -> BaseException | None:
        """Returns the exception of the source or of placing; None at the source's end, and when stopped."""
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._stopped or len(self._ready) < self._buffer_size)
                if self._stopped:
                    return None
                try:
                    batch = next(self._source)
                except StopIteration:
                    return None
                if self._stopped:
                    return None
                batch = self._place(batch)
                with self._changed:
                    if not self._stopped:
                        self._ready.append(batch)
                        self._changed.notify_all()
                del batch  # while it waits, the thread keeps no batch
        except BaseException as error:
            return error

    def _close_source(self) -> None:
        if not isinstance(self._source, Generator | Prefetcher):
            return
        try:
            self._source.close()
        except BaseException as error:
            if not self._close_is_awaited:
                raise  # no consumer is left: threading.excepthook reports it
            self._close_error = error


_running: Final[set[_Feed]] = set()
_running_lock: Final = threading.Lock()


def _stop_all() -> None:
    """Ends the threads before JAX shuts its backends down, which happens later at exit."""
    with _running_lock:
        feeds, until_s = list(_running), time.monotonic() + _EXIT_TIMEOUT_S
    for feed in feeds:
        feed.stop()
    for feed in feeds:
        feed.join(max(0.0, until_s - time.monotonic()))


atexit.register(_stop_all)
