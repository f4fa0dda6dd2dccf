"""The child that compiles: whatever it does, there is an answer in bounded time, and nothing of it is left.

The child is a real process that speaks the real protocol; what it does is that of tests/fakes/compiler.py.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.compiling.process import (
    COMPILE_ENVIRONMENT,
    HOST_RATIO,
    LOG_LINES,
    Ended,
    build_aborted,
    build_compile_environment,
    describe_status,
    read_default_limit_bytes,
    run_child,
)
from meshwright.compiling.worker import NICENESS, OOM_SCORE
from meshwright.errors import InvalidRequestError, ProblemError
from meshwright.wire.runs import Progress
from tests.agents import wait_for
from tests.fakes.codes import has_code
from tests.fakes.compiler import FUNCTIONS, check_fake
from tests.process.living import is_alive, list_children, list_own_children

ROOT = Path(__file__).parents[3]


def run(does: str = "", **options: Any) -> dict[str, Any] | Ended:
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    job = {"does": does, "target": "v5e:2x2", **options.pop("job", {})}
    return run_child(FUNCTIONS["verify"], job, environ=environ, **{"limit_s": 60.0, **options})


def end(does: str, **options: Any) -> Ended:
    found = run(does, **options)
    assert isinstance(found, Ended)
    return found


def hear(does: str, **options: Any) -> str:
    """Returns the last message of a run."""
    heard: list[str] = []
    run(does, on_progress=lambda progress: heard.append(progress.message), **options)
    return heard[-1]


def test_the_answer_and_the_progress_come_beside_what_is_printed() -> None:
    heard: list[Progress] = []
    answer = run(on_progress=heard.append)
    assert isinstance(answer, dict)
    check_fake(answer)
    assert answer["target"] == "v5e:2x2"
    starting = Progress(message="starting the compiler", done=0, total=1)
    assert heard == [starting, Progress(message="tracing", done=1, total=4)]


def test_an_abort_is_told_with_its_last_lines_and_the_python_code_that_it_came_from() -> None:
    ended = end("abort")
    assert ended.reason == "the compiler aborted (SIGABRT)"
    assert "F0000 Check failed: the mesh is shuffled" in ended.log
    assert "libtpu writes to stdout" in ended.log
    assert any("compiler.py" in line and "in behave" in line for line in ended.log)
    assert build_aborted(ended, "v5e:2x2").status == "aborted"


def test_a_child_that_ends_without_an_answer_says_its_status() -> None:
    assert end("exit").reason == "the compiler ended with status 3 before it answered"


def test_one_that_hangs_is_killed_when_its_time_is_over() -> None:
    before = list_own_children(os.getpid())
    began_s = time.monotonic()
    assert "did not end within 4 s" in end("hang", limit_s=4.0).reason
    assert time.monotonic() - began_s < 8.0
    assert list_own_children(os.getpid()) <= before


def test_one_that_reads_nothing_of_a_large_job_can_be_stopped(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import time; time.sleep(60)")
    environ, job = {**os.environ, "PYTHONPATH": str(tmp_path)}, {"closure": "x" * 2**20}
    began_s = time.monotonic()
    found = run_child(FUNCTIONS["verify"], job, environ=environ, is_stopped=lambda: True)
    assert isinstance(found, Ended)
    assert (found.reason, time.monotonic() - began_s < 30) == ("the compile was stopped", True)


def test_one_that_leaks_is_ended_at_its_limit() -> None:
    ended = end("leak", memory_limit_bytes=400_000_000)
    assert ended.reason == "the compiler used more than 400,000,000 bytes of the host's memory and was ended"
    assert ended.limit == "memory"


def test_a_bug_is_an_error_with_its_traceback_and_no_verdict() -> None:
    with pytest.raises(ProblemError, match="a bug of ours", check=has_code("internal")) as caught:
        run("raise")
    assert any("KeyError" in line for line in caught.value.log)


def test_a_job_that_cannot_be_is_refused_with_its_hint() -> None:
    with pytest.raises(InvalidRequestError, match="step x:y is none") as caught:
        run("refuse")
    assert caught.value.hint == "use a:b"


def test_no_output_blocks_it_and_the_log_has_an_end() -> None:
    assert isinstance(run("shout"), dict)
    log = end("shout and abort").log
    assert len(log) == LOG_LINES
    assert "line 99999" in log


def test_the_maps_of_a_crash_do_not_push_its_cause_out_of_the_log() -> None:
    assert "what went wrong" in end("crash with a map").log


def test_a_child_goes_behind_the_hosts_other_work_and_is_the_first_that_the_kernel_ends() -> None:
    assert hear("priority") == f"{os.nice(0) + NICENESS} {OOM_SCORE}"


def test_a_step_that_reads_stdin_does_not_wait() -> None:
    assert hear("read") == "read ''"


def test_what_the_compiler_started_goes_with_it() -> None:
    sleeper = int(hear("fork").split()[1])
    wait_for(lambda: not is_alive(sleeper), limit_s=5.0)


def test_a_callback_that_raises_kills_it() -> None:
    before = list_own_children(os.getpid())

    def interrupt(progress: Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run("hang", on_progress=interrupt)
    assert list_own_children(os.getpid()) <= before


@pytest.mark.parametrize(
    ("name", "expected"), [("JAX_PLATFORMS", "cpu"), ("CUDA_VISIBLE_DEVICES", ""), ("MESHWRIGHT_TOKEN", "unset")]
)
def test_the_child_opens_no_device_and_has_no_token(name: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESHWRIGHT_TOKEN", "secret")
    assert hear("environment", job={"name": name}) == expected


PARENT = """
import os
from tests.fakes.compiler import FUNCTIONS
from meshwright.compiling.process import run_child
run_child(FUNCTIONS["verify"], {"does": "hang"}, on_progress=lambda p: print("up", flush=True))
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_no_compile_outlives_its_parent(number: signal.Signals) -> None:
    environ, command = {**os.environ, "PYTHONPATH": str(ROOT)}, [sys.executable, "-c", PARENT]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    with subprocess.Popen(command, env=environ, **pipes) as parent:
        try:
            assert parent.stdout is not None
            assert parent.stdout.readline() == "up\n"
            (child,) = list_children(parent.pid)
            parent.send_signal(number)
            parent.wait(10)
            wait_for(lambda: not is_alive(child), limit_s=5.0)
        finally:
            parent.kill()


@pytest.mark.parametrize(("status", "said"), [
    (-6, "the compiler aborted (SIGABRT)"), (-11, "the compiler crashed (SIGSEGV)"),
    (-9, "the compiler was killed (SIGKILL), most likely since the host had no memory left"),
    (-99, "the compiler crashed (signal 99)"), (1, "the compiler ended with status 1 before it answered"),
    (None, "the compiler closed its connection, did not end, and was killed"),
])  # fmt: skip
def test_an_ending_is_said_in_words(status: int | None, said: str) -> None:
    assert describe_status(status) == said


# ---- the memory limit -----------------------------------------------------------------------------------------------


def write(root: Path, **files: str) -> Path:
    """Makes a host's /proc and /sys: names with __ for slashes."""
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(("name", "text", "bound_bytes"), [
    ("sys__fs__cgroup__memory.max", "max\n", 8 << 30), ("sys__fs__cgroup__memory.max", f"{2 << 30}\n", 2 << 30),
    ("sys__fs__cgroup__memory.max", f"{64 << 30}\n", 8 << 30),
    ("sys__fs__cgroup__memory__memory.limit_in_bytes", f"{1 << 30}\n", 1 << 30),
    ("sys__fs__cgroup__memory__memory.limit_in_bytes", "9223372036854771712\n", 8 << 30),
    ("sys__fs__cgroup__system.slice__agent.service__memory.max", f"{1 << 30}\n", 1 << 30),
    ("sys__fs__cgroup__system.slice__memory.max", f"{1 << 30}\n", 1 << 30),
    ("sys__fs__cgroup__system.slice__other.service__memory.max", f"{1 << 30}\n", 8 << 30),
])  # fmt: skip
def test_by_default_it_is_a_part_of_host_or_cgroup(tmp_path: Path, name: str, text: str, bound_bytes: int) -> None:
    own = {"proc__self__cgroup": "4:memory:/docker/4f\n3:cpu,cpuacct:/docker/4f\n0::/system.slice/agent.service\n"}
    root = write(tmp_path, proc__meminfo=f"MemFree: 1 kB\nMemTotal: {8 << 20} kB\n", **own, **{name: text})
    assert read_default_limit_bytes(root) == HOST_RATIO * bound_bytes


def test_where_nothing_tells_there_is_no_default(tmp_path: Path) -> None:
    assert read_default_limit_bytes(tmp_path) is None
    assert 0 < (read_default_limit_bytes() or 0) < 1 << 50


AUTOGROUP = Path("/proc/self/autogroup")


@pytest.mark.skipif(not AUTOGROUP.exists(), reason="this kernel does not group processes by session")
@pytest.mark.parametrize(("leads", "group"), [(True, "7"), (False, "0")])
def test_a_session_goes_behind_others_where_its_leader_does(leads: bool, group: str) -> None:
    start = "from meshwright.compiling.worker import lower_priority; lower_priority(7);"
    code = f"{start} print(open('{AUTOGROUP}').read())"
    whole = code if leads else f"import subprocess, sys; subprocess.run([sys.executable, '-c', {code!r}], check=True)"
    command, kept = [sys.executable, "-c", whole], {"capture_output": True, "text": True}
    done = subprocess.run(command, start_new_session=True, check=True, timeout=60, **kept)
    assert done.stdout.split()[-1] == group


# ---- the environment ------------------------------------------------------------------------------------------------

NAMES = st.text("ABCDEFGHIJKLMNOPQRSTUVWXYZ_", min_size=1, max_size=12)


def test_what_this_host_is_goes() -> None:
    host = {"TPU_TOPOLOGY": "4x4", "TPU_WORKER_ID": "3", "MEGASCALE_NUM_SLICES": "2", "JAX_NUM_CPU_DEVICES": "8"}
    made = build_compile_environment(host)
    assert "TPU_TOPOLOGY" not in made
    assert "MEGASCALE_NUM_SLICES" not in made
    assert "JAX_NUM_CPU_DEVICES" not in made
    assert made["TPU_WORKER_ID"] == "0"


def test_no_secret_and_nothing_of_the_service_manager_comes_along() -> None:
    told = {
        "MESHWRIGHT_TOKEN": "s", "MESHWRIGHT_TOKEN_FILE": "/s", "MESHWRIGHT_ADMIN_TOKEN": "s",
        "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "s", "NOTIFY_SOCKET": "/run/n", "WATCHDOG_USEC": "1",
        "WATCHDOG_PID": "1", "LISTEN_FDS": "1",
    }  # fmt: skip
    assert build_compile_environment(told) == COMPILE_ENVIRONMENT


def test_the_users_flags_stay_but_for_the_number_of_cpu_devices() -> None:
    flags = "--xla_gpu_enable_triton_gemm=false --xla_force_host_platform_device_count=8 --xla_dump_to=d"
    made = build_compile_environment({"XLA_FLAGS": flags, "LIBTPU_INIT_ARGS": "--xla_tpu_x=1"})
    assert made["XLA_FLAGS"] == "--xla_gpu_enable_triton_gemm=false --xla_dump_to=d"
    assert made["LIBTPU_INIT_ARGS"] == "--xla_tpu_x=1"
    assert "XLA_FLAGS" not in build_compile_environment({})


def test_libtpu_tells_its_warnings_and_leaves_no_files() -> None:
    told = {"TPU_LOG_DIR": "/var/log", "TPU_STDERR_LOG_LEVEL": "3", "TF_CPP_MIN_LOG_LEVEL": "3"}
    made = build_compile_environment(told)
    assert made["TPU_LOG_DIR"] == "disabled"
    assert made["TPU_STDERR_LOG_LEVEL"] == made["TF_CPP_MIN_LOG_LEVEL"] == "1"


@given(st.dictionaries(NAMES, st.text(max_size=8)))
def test_twice_is_once_and_what_is_not_about_devices_is_untouched(base: dict[str, str]) -> None:
    made = build_compile_environment(base)
    assert build_compile_environment(made) == made
    kept = [name for name in base if name.startswith("PATH")]
    assert [made.get(name) for name in kept] == [base[name] for name in kept]
