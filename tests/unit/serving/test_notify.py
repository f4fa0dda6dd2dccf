"""What systemd is told, over a real datagram socket; a whole agent tells it in tests/deploy/test_notify.py."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from meshwright_agent.serving.notify import STATUS_INTERVAL_S, Notifier, read_address, read_watchdog_s


class Manager:
    """systemd's end of the socket."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._sock.bind(str(path))
        self._sock.setblocking(False)

    def heard(self) -> list[list[str]]:
        """Returns the messages that have come since, each as its fields."""
        messages = []
        while True:
            try:
                messages.append(self._sock.recv(4096).decode().split("\n"))
            except BlockingIOError:
                return messages

    def close(self) -> None:
        self._sock.close()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    manager = Manager(tmp_path / "notify")
    yield manager
    manager.close()


def ready() -> tuple[bool, str]:
    return True, "ready"


def test_ready_is_told_with_the_status_and_only_once(manager: Manager) -> None:
    async def begin() -> None:
        notifier = Notifier({"NOTIFY_SOCKET": str(manager.path)}, ready)
        assert manager.heard() == []
        notifier.begin()
        notifier.begin()

    asyncio.run(begin())
    assert manager.heard() == [["READY=1", "STATUS=ready"]]


def test_the_loop_pings_at_half_of_the_watchdogs_time_and_stops_when_it_stands_still(manager: Manager) -> None:
    environ = {"NOTIFY_SOCKET": str(manager.path), "WATCHDOG_USEC": "200000"}

    async def live() -> int:
        notifier = Notifier(environ, ready)
        assert notifier.interval_s == pytest.approx(0.1)
        notifier.begin()
        deadline = asyncio.get_running_loop().time() + 20
        pings = 0
        while pings < 5 and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.05)
            pings += manager.heard().count(["WATCHDOG=1"])
        return pings

    assert asyncio.run(live()) >= 5
    assert manager.heard() == []


def test_a_change_of_readiness_is_told_in_one_line(manager: Manager) -> None:
    lines = iter(["starting:\ndevices not seen", "ready", "ready"])

    async def live() -> None:
        notifier = Notifier(
            {"NOTIFY_SOCKET": str(manager.path), "WATCHDOG_USEC": "20000"}, lambda: (False, next(lines, "ready"))
        )
        notifier.begin()
        await asyncio.sleep(0.2)

    asyncio.run(live())
    said = [field for message in manager.heard() for field in message if field.startswith("STATUS=")]
    assert said == ["STATUS=starting: devices not seen", "STATUS=ready"]


def test_draining_is_told(manager: Manager) -> None:
    Notifier({"NOTIFY_SOCKET": str(manager.path)}, ready).begin_stopping()
    assert manager.heard() == [["STOPPING=1", "STATUS=draining"]]


def test_without_systemd_nothing_is_asked_or_sent() -> None:
    def never() -> tuple[bool, str]:
        raise AssertionError("nobody wants to know")

    async def live() -> int:
        notifier = Notifier({}, never)
        notifier.begin()
        notifier.begin_stopping()
        return len(asyncio.all_tasks())

    assert asyncio.run(live()) == 1


def test_a_manager_that_has_gone_costs_a_line_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Notifier({"NOTIFY_SOCKET": str(tmp_path / "nobody")}, ready).begin_stopping()
    assert "systemd was not told STOPPING=1" in caplog.text


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("/run/systemd/notify", "/run/systemd/notify"),
        ("@abstract", "\0abstract"),
        ("vsock:2:1", None),
        ("", None),
    ],
)
def test_addresses_are_read_as_sd_notify_writes_them(address: str, expected: str | None) -> None:
    assert read_address({"NOTIFY_SOCKET": address}) == expected


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "7"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "8"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "-1"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({}, None),
    ],
)
def test_the_watchdog_is_ours_only_when_it_means_this_process(environ: dict[str, str], expected: float | None) -> None:
    assert read_watchdog_s(environ, pid=7) == expected


@pytest.mark.parametrize(("usec", "interval_s"), [("4000000", 2.0), ("60000000", STATUS_INTERVAL_S)])
def test_pings_come_at_least_as_often_as_the_status(usec: str, interval_s: float) -> None:
    assert Notifier({"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": usec}, ready).interval_s == interval_s
