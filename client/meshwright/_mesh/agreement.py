"""Agreement between the processes of a job: all say a text, read all texts, and go on together or not at all.

Rule: every wait ends. The texts go through the key-value store of JAX's coordination service, which needs no
device and no collective, and a barrier at the end fails for all when it fails for one. Knows neither jax nor
plans: the service is an argument.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from meshwright.errors import PlanMismatchError

_KEY: Final = "meshwright"

MIN_COMMIT_S: Final = 1.0
"""All have spoken, perhaps the last one just in time: this long the others may need to read it."""


class Board(Protocol):
    """What is used of jax's distributed client: a key-value store and barriers, shared by all processes of a
    job."""

    def key_value_set(self, key: str, value: str, /) -> None:
        """Writes a key once."""

    def blocking_key_value_get(self, key: str, timeout_in_ms: int, /) -> str:
        """Returns a key's value as soon as it is there; raises when it is not there in time."""

    def wait_at_barrier(self, barrier_id: str, timeout_in_ms: int, /) -> None:
        """Returns when every process waits here; raises, in all of them, when one does not come."""


@dataclass
class Agreement:
    """The talk between the processes of a job. Every process must call the same methods in the same order.

    Attributes:
        board: where texts are exchanged.
        rank, count: this process, of how many.
        clock: seconds that only grow.
    """

    board: Board
    rank: int
    count: int
    clock: Callable[[], float] = field(default=time.monotonic)
    _round: int = 0
    _deadline: float = 0.0

    def exchange(self, text: str, *, timeout_s: float) -> tuple[str, ...]:
        """Returns what every process said, by rank; the own text included.

        Raises:
            PlanMismatchError: naming the processes that said nothing within `timeout_s`.
        """
        self._round += 1
        self._deadline = self.clock() + timeout_s
        self.board.key_value_set(self._name(self.rank), text)
        texts = [self._read(rank) for rank in range(self.count)]
        silent = [rank for rank, said in enumerate(texts) if said is None]
        if silent:
            raise _refuse(f"process {', '.join(map(str, silent))} of {self.count} did not call it", timeout_s)
        return tuple(said for said in texts if said is not None)

    def commit(self) -> None:
        """Returns when every process has come here after the last exchange, within that one's time limit.

        Raises:
            PlanMismatchError: in every process that came, since one did not come.
        """
        left_s = max(self._deadline - self.clock(), MIN_COMMIT_S)
        try:
            self.board.wait_at_barrier(f"{_KEY}/{self._round}/commit", _to_ms(left_s))
        except Exception as error:  # jax raises a bare RuntimeError of its own
            raise _refuse("one did not go on after all had spoken", left_s) from error

    def _name(self, rank: int) -> str:
        return f"{_KEY}/{self._round}/{rank}"

    def _read(self, rank: int) -> str | None:
        try:
            return self.board.blocking_key_value_get(self._name(rank), _to_ms(self._deadline - self.clock()))
        except Exception:  # a time-out and a lost service look alike, and mean the same here
            return None


def _to_ms(seconds: float) -> int:
    return max(int(seconds * 1000), 1)


def _refuse(what: str, timeout_s: float) -> PlanMismatchError:
    return PlanMismatchError(
        f"the processes of this job did not agree within {timeout_s:g} s: {what}; every process must call "
        f"build_mesh "
        f"(or mesh_fingerprint) alike\n  hint: look whether it is still starting or has failed; a larger "
        f"timeout_s waits longer"
    )
