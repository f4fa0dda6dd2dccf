"""A child that misbehaves on request: `python -m tests.fakes.faulty_child`, started by a real supervisor.

Each handler is one way to go wrong. What goes wrong before hello is asked for in MESHWRIGHT_FAULT.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from typing import Any, NoReturn

from meshwright_agent.children import child
from meshwright_agent.children.child import CallContext, serve
from meshwright_agent.supervisor.protocol import PROTOCOL_VERSION, Hello, ProgressFrame, ResultFrame, format_frame

KIND = "faulty"


def echo(arguments: dict[str, Any], _context: CallContext) -> dict[str, Any]:
    return {"arguments": arguments, "generation": GENERATION, "pid": os.getpid()}


def environment(arguments: dict[str, Any], _context: CallContext) -> dict[str, Any]:
    return {name: os.environ.get(name) for name in arguments["names"]}


def abort(_arguments: dict[str, Any], _context: CallContext) -> dict[str, Any]:
    print("last words before the abort")
    os.abort()


def leave(arguments: dict[str, Any], _context: CallContext) -> dict[str, Any]:
    os._exit(arguments["status"])


def hold_the_gil() -> ctypes.PyDLL:
    """Ignores SIGTERM, returns a C library whose calls keep the GIL; between them no other thread gets it."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.setswitchinterval(1000)
    return ctypes.PyDLL(None)


def hang_with_gil(_arguments: dict[str, Any], context: CallContext) -> dict[str, Any]:
    """Tells that it is about to hang, and hangs in C with the GIL held."""
    line = format_frame(ProgressFrame(context._id, {"message": "about to hang"}))
    c = hold_the_gil()
    c.write(FD, line, len(line))
    c.usleep(600_000_000)
    return {}


def work(_arguments: dict[str, Any], context: CallContext) -> dict[str, Any]:
    """Works until it is cancelled, politely; its `except Exception` must not swallow the cancel."""
    context.progress({"message": "working"})
    while True:
        try:
            context.check()
        except Exception:
            return {"swallowed": True}
        time.sleep(0.002)


def raise_other(_arguments: dict[str, Any], _context: CallContext) -> dict[str, Any]:
    raise ZeroDivisionError("a bug in the handler")


def exit_politely(_arguments: dict[str, Any], _context: CallContext) -> dict[str, Any]:
    sys.exit(4)


def answer_nan(_arguments: dict[str, Any], _context: CallContext) -> dict[str, Any]:
    return {"bandwidth": float("nan")}


def answer_huge(arguments: dict[str, Any], _context: CallContext) -> dict[str, Any]:
    return {"text": "x" * arguments["bytes"]}


def chatter(arguments: dict[str, Any], _context: CallContext) -> dict[str, Any]:
    """Writes much to stdout and stderr, without newlines and with: nobody may be blocked by it."""
    sys.stdout.write("y" * arguments["bytes"])
    for number in range(arguments["lines"]):
        print(f"line {number}", file=sys.stderr)
    return {}


BROKEN = {
    "no JSON": "this is no frame\n", "too deep": "[" * 100_000 + "\n", "a line without end": "x" * 70_000_000,
    "another call's reply": format_frame(ResultFrame(7, {})).decode(),
}  # fmt: skip


def break_protocol(arguments: dict[str, Any], _context: CallContext) -> dict[str, Any]:
    """Sends what no child sends, past the protocol."""
    socket.socket(fileno=os.dup(FD)).sendall(BROKEN[arguments["how"]].encode())
    time.sleep(600)
    return {}


def start_grandchild(_arguments: dict[str, Any], _context: CallContext) -> dict[str, Any]:
    """Leaves a process behind that holds stdout and would outlive us."""
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    return {"pid": subprocess.Popen(command, close_fds=False).pid}


def fork_and_leave(_arguments: dict[str, Any], _context: CallContext) -> dict[str, Any]:
    """Dies, and leaves a fork behind that holds the socket and stdout."""
    if pid := os.fork():
        print(f"forked {pid}")
        os._exit(3)
    while True:
        time.sleep(600)


def starve_reader(_arguments: dict[str, Any], _context: CallContext) -> dict[str, Any]:
    """Leaves its reader thread without memory for the next frame."""

    def fail(_line: bytes) -> NoReturn:
        raise MemoryError

    child.parse_frame = fail
    return {}


def close_socket(_arguments: dict[str, Any], _context: CallContext) -> dict[str, Any]:
    """Shuts the connection and lives on."""
    c = hold_the_gil()
    c.shutdown(FD, socket.SHUT_WR)
    c.usleep(600_000_000)
    return {}


HANDLERS = {
    handler.__name__: handler
    for handler in (
        echo, environment, abort, leave, hang_with_gil, work, raise_other,
        exit_politely, answer_nan, answer_huge, chatter, break_protocol, start_grandchild, fork_and_leave,
        starve_reader, close_socket
    )
}  # fmt: skip

FD, GENERATION = (
    next((int(word.removeprefix(name)) for word in sys.argv if word.startswith(name)), -1)
    for name in ("--fd=", "--generation=")
)


def prepare() -> None:
    match os.environ.get("MESHWRIGHT_FAULT"):
        case "raise":
            raise RuntimeError("no devices were found")
        case "exit":
            print("going away before hello", flush=True)
            os._exit(3)
        case "hang":
            hold_the_gil().usleep(600_000_000)
        case "wrong protocol":
            _send_and_wait(Hello(PROTOCOL_VERSION + 1, KIND, os.getpid(), 1))
        case "progress first":
            _send_and_wait(ProgressFrame(1, {}))


def _send_and_wait(frame: Hello | ProgressFrame) -> NoReturn:
    socket.socket(fileno=os.dup(FD)).sendall(format_frame(frame))
    while True:
        time.sleep(600)


if __name__ == "__main__":
    serve(KIND, prepare, HANDLERS)
