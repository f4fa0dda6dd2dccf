"""How often a process of a preflight measures a suspect again and tries to connect, and whose fault an error is."""

from __future__ import annotations

import socket
import time
from types import SimpleNamespace
from typing import Any

import jax
import pytest

from meshwright.errors import RunFailedError
from meshwright.preflight.rule import CONFIRM_ROUNDS, HostFigures
from meshwright_agent.children import preflight
from meshwright_agent.children.preflight import (
    MAX_SAMPLES,
    SAMPLES,
    _measure_rate,
    _Part,
    can_connect,
    waiting_for_others,
)

SAMPLE_S = 0.03
A_TRY = SAMPLES + 1
TRIAL: Any = SimpleNamespace(flops=1.0, size_bytes=0, busbw_factor=None)


class Measured:
    """A device of which the second try is the fastest."""

    count = 0

    def sample(self) -> float:
        time.sleep(SAMPLE_S)
        self.count += 1
        return 0.5 if (self.count - 1) // A_TRY == 1 else 1.0

    def verify(self) -> Any:
        return SimpleNamespace(wrong_elements=0)


@pytest.mark.parametrize("left_s", [1000.0, 1.0])
def test_a_suspect_is_measured_again_as_often_as_there_is_time_for_and_the_best_counts(
    left_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "WINDOW_S", SAMPLES * SAMPLE_S)
    monkeypatch.setattr(preflight, "CONFIRM_S", 2.0)
    suspect, other = Measured(), Measured()
    nothing: Any = None
    part = _Part(nothing, nothing, "cpu", 2, until_s=time.monotonic() + left_s)
    part.devices = {0: None, 1: None}
    part.subjects = {("matmul", 0): (TRIAL, suspect), ("matmul", 1): (TRIAL, other)}
    before = HostFigures(({"matmul": 0.1}, {"matmul": 0.2}), None, ())
    again = part.measure_again(before, {("matmul", 0)})
    tries, rest = divmod(suspect.count, A_TRY)
    assert (rest, other.count, tries > 2) == (0, 0, left_s > 1)
    assert [device["matmul"] for device in again.devices] == [min(tries, 2), 0.2]


@pytest.mark.parametrize(("left_s", "round_s", "sample_s", "rounds", "samples"), [
    (400.0, 1.0, 0.004, CONFIRM_ROUNDS, MAX_SAMPLES),
    (60.0, 5.0, 0.1, 3, 25),  # much of a round is not sampling
    (60.0, 60.0, 10.0, 1, SAMPLES),  # a slow link
])  # fmt: skip
def test_the_network_of_a_suspect_is_sampled_as_often_as_there_is_time_for(
    left_s: float, round_s: float, sample_s: float, rounds: int, samples: int
) -> None:
    request: Any = SimpleNamespace(hosts=("a",))
    heartbeat: Any = None
    part = _Part(request, heartbeat, "cpu", 1, time.monotonic() + left_s + 0.1, round_s=round_s, sample_s=sample_s)
    part.devices = {0: None}
    figures = HostFigures(({"matmul": 1.0, "memory_bandwidth": 2.0},), None, (3.0, None))
    assert part.share_figures(figures) == ([figures], rounds, (samples, min))


def test_a_limit_of_cpu_time_does_not_hide_between_short_samples() -> None:
    class Limited(Measured):
        """8 samples of 1 ms, then one that stands still for the rest of 0.1 s."""

        def sample(self) -> float:
            self.count += 1
            sample_s = 0.001 if self.count % 9 else 0.092
            time.sleep(sample_s)
            return sample_s

    limited: Any = Limited()
    assert 1 / _measure_rate(TRIAL, limited) > 0.009


def test_a_last_try_to_connect_comes_after_the_time_in_which_the_process_may_have_stood_still(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def stand_still(*_: object, **__: object) -> None:
        monkeypatch.undo()
        time.sleep(0.05)
        raise TimeoutError

    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        monkeypatch.setattr(socket, "create_connection", stand_still)
        assert can_connect(address, limit_s=0.02)
    assert not can_connect(address, limit_s=0.0)


@pytest.mark.parametrize("kind", [jax.errors.JaxRuntimeError, ValueError])
def test_that_another_process_ended_is_no_fault_of_this_host(kind: type[Exception]) -> None:
    with pytest.raises(RunFailedError, match="another host") as caught, waiting_for_others("a sum"):
        raise kind("UNKNOWN: Gloo collective permute failed: Read error [10.0.0.2]:46786: Connection reset by peer")
    assert caught.value.code == "run_cancelled"
    with pytest.raises(kind, match="shapes"), waiting_for_others("a sum"):
        raise kind("INVALID_ARGUMENT: shapes differ")
