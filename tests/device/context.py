"""A process that is not the agent's and has a CUDA context: `python -m tests.device.context`, until its stdin closes.

Rule: CUDA's driver library alone, as any other job's process looks to the driver; no JAX.

Source: NVIDIA, CUDA Driver API (docs.nvidia.com/cuda/cuda-driver-api).
"""

from __future__ import annotations

import ctypes
import sys
from typing import Final

HELD_BYTES: Final = 256 << 20


def main() -> None:
    """Takes a context and some memory of the first card, says "held", and waits."""
    cuda = ctypes.CDLL("libcuda.so.1")
    device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    for name, arguments in (
        ("cuInit", (0,)),
        ("cuDeviceGet", (ctypes.byref(device), 0)),
        ("cuDevicePrimaryCtxRetain", (ctypes.byref(context), device)),
        ("cuCtxSetCurrent", (context,)),
        ("cuMemAlloc_v2", (ctypes.byref(memory), ctypes.c_size_t(HELD_BYTES))),
    ):
        status = getattr(cuda, name)(*arguments)
        if status != 0:
            sys.exit(f"{name} answered {status}")
    print("held", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
