"""The command `meshwright`, loaded once: each call is a fork of that process, in a tenth of the time of a start.

A call has the arguments, the environment, the folder, the streams and the exit status of the process that asks for it.
"""

from __future__ import annotations

import contextlib
import marshal
import os
import select
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import typer

from meshwright import Client  # noqa: F401
from meshwright.cli import app, main

ASKS = """#!{python} -SE
import marshal, os, socket, sys
call = socket.socket(socket.AF_UNIX)
call.connect({address!r})
socket.send_fds(call, [marshal.dumps([sys.argv[1:], dict(os.environ), os.getcwd()])], [0, 1, 2])
os._exit(int(call.recv(9) or 70))
"""


@contextlib.contextmanager
def start_client(*prefix: str) -> Iterator[str]:
    """Yields the path of a command `meshwright`; `prefix` executes what it forks from, such as `ip netns exec`."""
    with tempfile.TemporaryDirectory(prefix="mw-") as folder, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address := f"{folder}/calls")
        listener.listen(64)
        command = [*prefix, sys.executable, __file__, str(listener.fileno())]
        path = Path(folder, "meshwright")
        path.write_text(ASKS.format(python=sys.executable, address=address))
        path.chmod(0o755)
        with subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[listener.fileno()]):
            listener.close()
            yield str(path)


def serve(listener: socket.socket) -> None:
    """Answers calls until stdin ends."""
    while 0 not in select.select([0, listener], [], [])[0]:
        call = listener.accept()[0]
        if os.fork():
            call.close()
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            continue
        if child := os.fork():
            status = os.waitpid(child, 0)[1]
            call.send(str(os.waitstatus_to_exitcode(status) % 256).encode())
            os._exit(0)
        text, streams, *_ = socket.recv_fds(call, 1 << 20, 3)
        arguments, environment, folder = marshal.loads(text)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        listener.close()
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(folder)
        sys.stdin, sys.stdout, sys.stderr = (os.fdopen(each, mode) for each, mode in enumerate("rww"))
        main(arguments)


if __name__ == "__main__":
    dict(cast(Any, typer.main.get_command(app)).commands)  # each imports its module
    serve(socket.socket(fileno=int(sys.argv[1])))
