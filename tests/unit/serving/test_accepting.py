"""What was accepted counts until it is closed, on real sockets."""

from __future__ import annotations

import gc
import socket
import warnings
from contextlib import ExitStack
from pathlib import Path

import pytest

from meshwright_agent.descriptors import LEAST_CONNECTIONS, OWN, fit_connections
from meshwright_agent.serving.accepting import Listener, Room


def _connect(listener: socket.socket) -> socket.socket:
    asking = socket.socket(listener.family, socket.SOCK_STREAM)
    asking.settimeout(10)
    asking.connect(listener.getsockname())
    return asking


def test_beyond_its_room_a_connection_is_closed_at_once_and_places_come_back(tmp_path: Path) -> None:
    room = Room(most=2)
    with ExitStack() as stack:
        tcp = stack.enter_context(Listener.over(socket.create_server(("127.0.0.1", 0)), room))
        plain = socket.socket(socket.AF_UNIX)
        plain.bind(str(tmp_path / "s"))
        plain.listen()
        unix = stack.enter_context(Listener.over(plain, room))
        stack.enter_context(_connect(tcp))
        stack.enter_context(_connect(unix))
        (first, address), (second, _) = tcp.accept(), unix.accept()
        assert (first.family, second.family) == (socket.AF_INET, socket.AF_UNIX)
        assert address[0] == "127.0.0.1"
        asking = stack.enter_context(_connect(tcp))
        with pytest.raises(ConnectionAbortedError):
            tcp.accept()
        assert room.refused == {"no_room": 1}
        assert asking.recv(1) == b""
        first.close()
        first.close()
        assert room.taken == 1
        with warnings.catch_warnings(action="ignore", category=ResourceWarning):  # nobody has closed it
            del second
            gc.collect()
        assert room.taken == 0
        stack.enter_context(_connect(tcp))
        again, _ = tcp.accept()
        assert room.taken == 1
        again.close()


def test_what_is_closed_before_the_protocol_has_begun_counts_once_as_a_failed_handshake() -> None:
    room = Room(most=4)
    with Listener.over(socket.create_server(("127.0.0.1", 0)), room) as tcp, ExitStack() as stack:
        begun, failed, forgotten = ((stack.enter_context(_connect(tcp)), tcp.accept()[0])[1] for _ in range(3))
        room.begin(begun.fileno())
        begun.close()
        assert room.refused == {}
        failed.close()
        failed.close()
        assert room.refused == {"handshake": 1}
        with warnings.catch_warnings(action="ignore", category=ResourceWarning):  # nobody has closed it
            del forgotten
            gc.collect()
        assert room.refused == {"handshake": 2}
        stack.enter_context(_connect(tcp))
        again, _ = tcp.accept()  # with a descriptor that another had
        room.begin(again.fileno())
        again.close()
        assert (room.refused, room.taken) == ({"handshake": 2}, 0)


def test_a_listener_that_does_not_wait_says_that_nobody_is_there() -> None:
    with Listener.over(socket.create_server(("127.0.0.1", 0)), Room(most=1)) as listener:
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.accept()


@pytest.mark.parametrize(
    ("wanted", "descriptors", "most"),
    [
        (2048, 65536, 2048),
        (2048, 2048 + OWN, 2048),
        (2048, 1024, 1024 - OWN),
        (2048, OWN, LEAST_CONNECTIONS),
        (3, 64, 3),
    ],
)
def test_connections_are_what_descriptors_leave_room_for(wanted: int, descriptors: int, most: int) -> None:
    assert fit_connections(wanted, descriptors) == most
