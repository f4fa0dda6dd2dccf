"""The environment of a compiler child: in it JAX opens no device, and XLA describes what is not here.

Rule: pure. What the user set for a compiler stays, since the job will run with it; what describes this host goes, since
the target is another machine. Knows no jax: its variables take effect only in a process that has not started JAX yet.

Autotuning is turned off in the compiler's options (`meshwright.compiling.compilers`), not here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

XLA_FLAGS: Final = "XLA_FLAGS"

COMPILE_ENVIRONMENT: Final[Mapping[str, str]] = {
    "JAX_PLATFORMS": "cpu",
    "CUDA_VISIBLE_DEVICES": "",
    "HIP_VISIBLE_DEVICES": "",
    "ROCR_VISIBLE_DEVICES": "",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
    "TPU_LOG_DIR": "disabled",
    "TPU_MIN_LOG_LEVEL": "1",
    "TPU_STDERR_LOG_LEVEL": "1",
    "TF_CPP_MIN_LOG_LEVEL": "1",
    "JAX_DISABLE_JIT": "false",
    "JAX_ENABLE_COMPILATION_CACHE": "false",
}
"""What every compiler child has, whatever was there.

- ALLOW_MULTIPLE_LIBTPU_LOAD: beside a trainer, or another compile, that has libtpu loaded and its lock file taken.
- TPU_SKIP_MDS_QUERY and the three after it: else libtpu asks Google's metadata server what this host is.
- TPU_LOG_DIR: libtpu leaves two files a process in /tmp/tpu_logs, for ever. TPU_STDERR_LOG_LEVEL=1: its warnings go to
  stderr instead; "Involuntary full rematerialization" is one. Likewise TF_CPP_MIN_LOG_LEVEL for jaxlib and CUDA.
- JAX_ENABLE_COMPILATION_CACHE: answers are kept by their key; a program from JAX's cache has no compiler's log.

Source: libtpu 0.0.42.1 and 0.0.50.1, tried."""

_KEPT: Final = frozenset({"TPU_LIBRARY_PATH"})

_DROPPED: Final = re.compile(
    r"TPU_|MEGASCALE_"  # which slice, worker and chips this host is
    r"|JAX_NUM_CPU_DEVICES|JAX_PLATFORM_NAME"  # the target says both
    r"|MESHWRIGHT_.*TOKEN|OTEL_EXPORTER_OTLP_.*HEADERS"  # secrets
    r"|NOTIFY_SOCKET|WATCHDOG_|LISTEN_(FDS|PID|FDNAMES)"  # what systemd tells the agent
)

_HOST_DEVICES: Final = re.compile(r"--xla_force_host_platform_device_count=\S*\s*")
"""XLA's older way to say how many CPU devices there are. JAX refuses it beside its own."""


def build_compile_environment(base: Mapping[str, str]) -> dict[str, str]:
    """Returns the complete environment of a process that compiles: `base` without what says where it runs.

    Flags of XLA and libtpu (`XLA_FLAGS`, `LIBTPU_INIT_ARGS`) stay as they are, but for the number of CPU devices.
    """
    kept = {name: value for name, value in base.items() if name in _KEPT or not _DROPPED.match(name)}
    flags = {XLA_FLAGS: _HOST_DEVICES.sub("", kept[XLA_FLAGS])} if XLA_FLAGS in kept else {}
    return {**kept, **flags, **COMPILE_ENVIRONMENT}
