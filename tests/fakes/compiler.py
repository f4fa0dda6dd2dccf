"""A compiler that behaves badly on demand, in the child that `meshwright.compiling.process` starts.

`check_fake`: a job that asks for nothing bad is answered as a compile is.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from meshwright.compiling.worker import Tell
from meshwright.errors import InvalidRequestError
from meshwright.wire.batch_size import CompiledBatch
from meshwright.wire.verification import Verification

FUNCTIONS = {"verify": "tests.fakes.compiler:behave", "fit": "tests.fakes.compiler:fit"}


def behave(job: dict[str, Any], tell: Tell) -> Verification:
    """Does what the job says."""
    print("libtpu writes to stdout")
    print("and to stderr", file=sys.stderr)
    tell("tracing", 1, 4)
    match job:
        case {"does": "abort"}:
            print("F0000 Check failed: the mesh is shuffled", file=sys.stderr)
            os.abort()
        case {"does": "crash with a map"}:
            print("what went wrong\n" + Path("/proc/self/maps").read_text(), file=sys.stderr)
            os.abort()
        case {"does": "exit"}:
            os._exit(3)
        case {"does": "hang"}:
            time.sleep(3600)
        case {"does": "leak"}:
            leak: list[bytes] = []
            while True:
                leak.append(os.urandom(1 << 20) * 64)
        case {"does": "raise"}:
            raise KeyError("a bug of ours")
        case {"does": "refuse"}:
            raise InvalidRequestError("step x:y is none", hint="use a:b")
        case {"does": "shout" | "shout and abort" as does}:
            print("\n".join(f"line {number}" for number in range(100_000)), file=sys.stderr)
            if does == "shout and abort":
                os.abort()
        case {"does": "priority"}:
            tell(f"{os.nice(0)} {Path('/proc/self/oom_score_adj').read_text().strip()}", 2, 4)
        case {"does": "fork"}:
            sleeper = subprocess.Popen(["sleep", "3600"])
            tell(f"sleeper {sleeper.pid}", 2, 4)
            os.abort()
        case {"does": "read"}:
            tell(f"read {sys.stdin.read()!r}", 2, 4)
        case {"does": "environment"}:
            tell(os.environ.get(job["name"], "unset"), 2, 4)
        case {"does": "answer"}:
            return Verification.model_validate(job["answer"])
    target = job.get("target")  # of a real job, a description
    return Verification(status="verified", target=target if isinstance(target, str) else None, peak_memory_bytes=1)


def fit(job: dict[str, Any], tell: Tell) -> CompiledBatch:
    """Does what the job says, then answers with a batch."""
    found = behave(job, tell)
    return CompiledBatch(per_replica_batch_size=3, global_batch_size=6, limit="memory", verification=found)


def check_fake(message: dict[str, Any]) -> None:
    """Refuses an answer that no compile gives."""
    assert Verification.model_validate(message).status == "verified"
