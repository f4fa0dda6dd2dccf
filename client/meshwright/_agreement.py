"""Agreement between the processes of a job: all publish a text, read all texts, and continue together or fail together.

Every wait has a limit. The texts go through the key-value store of JAX's coordination service, which needs no device
and no collective, and a barrier at the end fails for all when it fails for one. Each topic counts its own rounds, so
that threads with different topics never read each other's texts. Independent of plans and batches.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import jax

_KEY: Final = "meshwright"

_STEP_S: Final = 1.0
"""How long one request to the service waits at most; between two, a process may give up."""

_MIN_COMMIT_S: Final = 1.0
"""When all have published, perhaps the last one just in time, this long the others may need to read it."""


@dataclass
class Agreement:
    """The exchange between processes of a job about one topic. All of them call the same methods in the same order.

    Attributes:
        service: jax's client of the coordination service: a key-value store and barriers.
        processes: those that take part, this one included.
        topic: names the exchange in all of them.
        refuse: builds the exception from the failure.
        lock: to be held by a thread where several threads of a process may use this.
        round: how many exchanges this process has begun.
    """

    service: Any
    rank: int
    processes: Sequence[int]
    topic: str
    refuse: Callable[[str], Exception]
    lock: threading.Lock = field(default_factory=threading.Lock)
    round: int = 0
    _deadline_s: float = 0.0

    def exchange(self, text: str, *, timeout_s: float, check: Callable[[], None] = lambda: None) -> tuple[str, ...]:
        """Returns the texts of all processes, in the order of `processes`, including the own text.

        Args:
            timeout_s: how long to wait for the others.
            check: called about every second while waiting; raises to give up.

        Raises:
            Exception: of `refuse`, naming the processes without a text within `timeout_s`.
        """
        self.round += 1
        self._deadline_s = time.monotonic() + timeout_s
        self.service.key_value_set(self._name(self.rank), text)
        came = set[str]()  # so far as they were looked for
        try:
            texts = {rank: self._read(rank, came, check) for rank in self.processes}
            if late := [str(rank) for rank, found in texts.items() if found is None]:
                self._look(came)
                silent = ", ".join([rank for rank in late if self._name(rank) not in came] or late)
                raise self._refuse(f"process {silent} of {len(texts)} did not call it", timeout_s)
        except BaseException:
            with suppress(RuntimeError):
                self.service.key_value_delete(self._name(self.rank))
            self.round -= 1  # so that the next exchange has the same round as in processes that never joined
            raise
        return tuple(found for found in texts.values() if found is not None)

    def commit(self) -> None:
        """Returns when every process has come here after the last exchange, within that one's time limit.

        Raises:
            Exception: of `refuse`, in every process that came, since one did not come.
        """
        left_s = max(self._deadline_s - time.monotonic(), _MIN_COMMIT_S)
        try:
            self.service.wait_at_barrier(self._name("commit"), _to_ms(left_s), list(self.processes))
        except Exception as error:  # jax raises a bare RuntimeError of its own
            raise self._refuse("one did not go on after all had spoken", left_s) from error
        with suppress(RuntimeError):
            self.service.key_value_delete(self._name(self.rank))  # all have read it

    def _name(self, part: int | str) -> str:
        return f"{_KEY}/{self.topic}/{self.round}/{part}"

    def _read(self, rank: int, came: set[str], check: Callable[[], None]) -> str | None:
        while True:
            left_s = self._deadline_s - time.monotonic()
            step_s = min(left_s, _STEP_S if came else _STEP_S / 10)
            try:
                text: str = self.service.blocking_key_value_get(self._name(rank), _to_ms(step_s))
                return text
            except Exception as error:  # also of a lost service, which is handled in the same way
                if left_s <= step_s or "DEADLINE_EXCEEDED" not in str(error):
                    return None
            if not came:  # early, since those that came first withdraw their texts first
                self._look(came)
            check()

    def _look(self, came: set[str]) -> None:
        with suppress(RuntimeError):
            came.update(dict(self.service.key_value_dir_get(f"{_KEY}/{self.topic}/{self.round}")))

    def _refuse(self, what: str, timeout_s: float) -> Exception:
        return self.refuse(f"the processes of this job did not agree within {timeout_s:g} s: {what}")


def _to_ms(seconds: float) -> int:
    return max(int(seconds * 1000), 1)


_agreements: Final[dict[str, Agreement]] = {}


def find_agreement(topic: str, processes: Sequence[int], refuse: Callable[[str], Exception]) -> Agreement:
    """Returns this job's exchange about a topic, the same object each time.

    Raises:
        Exception: of `refuse`, where the job has no coordination service.
    """
    service = find_service()
    if service is None:
        raise refuse(
            f"this job has {jax.process_count()} processes and no coordination service, over which they compare what "
            f"they hold: call jax.distributed.initialize() before the first use of jax"
        )
    if any(each.service is not service for each in list(_agreements.values())):  # of a job before a restart
        _agreements.clear()
    return _agreements.setdefault(topic, Agreement(service, jax.process_index(), tuple(processes), topic, refuse))


def start_backend(timeout_s: float, refuse: Callable[[str], Exception]) -> None:
    """Starts JAX's backend, which in a job of several processes waits until each of them starts its own.

    Raises:
        Exception: of `refuse`, naming the processes that did not call this within `timeout_s`. JAX goes on starting in
            a thread, and a later call may succeed.
    """
    from jax._src import distributed

    state, service = distributed.global_state, find_service()
    if service is None:
        return
    failures: list[BaseException] = []

    def start() -> None:
        try:
            jax.devices()
        except BaseException as error:
            failures.append(error)

    with suppress(RuntimeError):  # it is there already
        service.key_value_set(f"{_KEY}/start/{state.process_id}", "")
    thread = threading.Thread(target=start, name="meshwright-start-jax", daemon=True)
    thread.start()
    thread.join(timeout_s)
    if failures:
        raise failures[0]
    if thread.is_alive():
        came = {key.rpartition("/")[2] for key, _ in service.key_value_dir_get(f"{_KEY}/start")}
        silent = [str(rank) for rank in range(state.num_processes) if str(rank) not in came]
        which = f"; process {', '.join(silent)} of {state.num_processes} did not call it" if silent else ""
        raise refuse(f"JAX, which waits for all processes of this job, did not start within {timeout_s:g} s{which}")


def find_service() -> Any:
    """Returns the client of the coordination service, for which jax has no public name; None where there is none."""
    from jax._src import distributed

    return distributed.global_state.client
