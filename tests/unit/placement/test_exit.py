"""A process that forgets its prefetchers ends all the same, quietly and within seconds."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time

import pytest

LIMIT_S = 20.0
ENVIRON = {**os.environ, "JAX_PLATFORMS": "cpu"}
START = """
    import itertools, threading, time
    import jax, numpy as np
    from meshwright.placement import prefetch_to_device
"""
PROGRAMS = {
    "an endless source, by two names and in a cycle": """
        class Trainer: ...
        trainer = Trainer()
        trainer.batches = trainer.again = prefetch_to_device((np.zeros(8) for _ in itertools.count()), buffer_size=64)
        trainer.itself = trainer
        for batch in trainer.batches:
            break
    """,
    "a source that never comes back": """
        def source():
            yield 0
            threading.Event().wait()
        batches = prefetch_to_device(source())
        next(batches)
    """,
    "a source in the middle of jax's work": """
        import jax.numpy as jnp
        def source():
            while True:
                until = time.monotonic() + 1.5
                while time.monotonic() < until:
                    jax.image.resize(jnp.ones((16, 16)), (32, 32), "linear")
                yield 0
        for batch in prefetch_to_device(source()):
            break
    """,
    "never asked": """
        batches = prefetch_to_device(itertools.count())
    """,
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_the_interpreter_ends(program: str) -> None:
    text = textwrap.dedent(START) + textwrap.dedent(program) + "\nprint('the end', flush=True)"
    command, pipes = [sys.executable, "-W", "error", "-c", text], {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=ENVIRON, text=True, **pipes) as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        began_s = time.monotonic()
        _, complaints = process.communicate(timeout=LIMIT_S)
    assert (said, complaints, process.returncode) == ("the end\n", "", 0)
    assert time.monotonic() - began_s < 15


def test_in_a_forked_child_the_missing_thread_is_an_error_and_no_hang() -> None:
    text = textwrap.dedent(START) + textwrap.dedent(
        """
        import os
        batches = prefetch_to_device(iter(range(100)), buffer_size=2)
        next(batches)
        child = os.fork()
        if child:
            os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        try:
            while True:
                next(batches)
        except RuntimeError as error:
            os._exit(7 if "do not go along with a fork" in str(error) else 8)
        """
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", text], env=ENVIRON, timeout=60, check=False)
    assert done.returncode == 7
