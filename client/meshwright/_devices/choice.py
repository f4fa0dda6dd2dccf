"""Chooses the detector of this process: that of the platform on which JAX computes, or would compute.

Rule: a running backend decides. Otherwise JAX's own rule is followed, without starting it: the first platform of
JAX_PLATFORMS, else the fastest for which there are both hardware and a plugin. AMD GPUs are known only once the backend
runs.

Source: jax/_src/xla_bridge.py, `backends`.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Mapping
from typing import Final

import jax

from meshwright._devices.capabilities import DeviceDetector, DeviceType
from meshwright._devices.cpu import CPUDetector
from meshwright._devices.cuda import CUDADetector
from meshwright._devices.no_gpu import read_cuda_plugins
from meshwright._devices.starting import has_backend_started
from meshwright._devices.tpu import TPUDetector
from meshwright.wire.devices import parse_platform

_DETECTORS: Final[Mapping[str, Callable[[], DeviceDetector]]] = {
    "gpu": CUDADetector,
    "tpu": TPUDetector,
    "cpu": CPUDetector,
}


def choose_detector() -> DeviceDetector:
    """Returns the detector of the platform that JAX has as its default, or would have if it started now."""
    platform = parse_platform(jax.default_backend()) if has_backend_started() else predict_platform()
    return _DETECTORS.get(platform, CPUDetector)()


def predict_platform() -> str:
    """Returns "gpu", "tpu" or "cpu": JAX's choice, from its configuration and the installed packages."""
    first = str(jax.config.values["jax_platforms"] or "").split(",")[0].strip()
    if first:
        return parse_platform(first)
    return choose_platform(
        has_gpu=bool(read_cuda_plugins()) and CUDADetector().detect_capabilities().device_count > 0,
        has_tpu=_has_libtpu() and TPUDetector().detect_capabilities().device_count > 0,
    ).value


def choose_platform(*, has_gpu: bool, has_tpu: bool) -> DeviceType:
    """Returns the usable platform that JAX prefers: GPUs (priority 500), then TPUs (300), then the CPU (0)."""
    if has_gpu:
        return DeviceType.GPU
    return DeviceType.TPU if has_tpu else DeviceType.CPU


def _has_libtpu() -> bool:
    return bool(os.environ.get("TPU_LIBRARY_PATH")) or importlib.util.find_spec("libtpu") is not None
