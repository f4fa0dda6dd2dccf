"""The environment in which XLA's TPU compiler describes slices that are not here, and opens no device."""

from __future__ import annotations

from meshwright.compiling.environment import COMPILE_ENVIRONMENT

SLICE_ENVIRONMENT = dict(COMPILE_ENVIRONMENT)
