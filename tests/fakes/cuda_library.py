"""The driver's library libcuda.so.1 as far as we ask it, callable through the C ABI; its check is that C can call it.

`cuDriverGetVersion(int *driverVersion)` returns a CUresult. Source: CUDA Driver API, "Version Management".
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

PROTOTYPE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int))
STUB_LIBRARY = 34


class FakeCudaLibrary:
    """A loaded library whose only function is a C function pointer.

    Args:
        number: the CUDA version that it supports: 12020 for 12.2.
        status: what the call returns; 0 is success.
    """

    def __init__(self, number: int, status: int = 0) -> None:
        def answer(pointer: Any) -> int:
            if status == 0:
                pointer[0] = number
            return status

        self.cuDriverGetVersion = PROTOTYPE(answer)


def provide(library: object) -> Callable[[str], Any]:
    """Returns a loader that knows libcuda.so.1 alone."""

    def load(name: str) -> Any:
        if name != "libcuda.so.1":
            raise OSError(f"{name}: cannot open shared object file")
        return library

    return load


def refuse(name: str) -> Any:
    """The loader of a machine without a driver."""
    raise OSError(f"{name}: cannot open shared object file: No such file or directory")


def check_library(library: FakeCudaLibrary) -> int:
    """Calls the function as C does, by its address; returns the status."""
    number = ctypes.c_int(-1)
    address = ctypes.cast(library.cuDriverGetVersion, ctypes.c_void_p).value
    assert address is not None
    status = PROTOTYPE(address)(ctypes.byref(number))
    assert (number.value == -1) == (status != 0)
    return status
