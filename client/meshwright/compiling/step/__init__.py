"""The training step that is compiled: a decoder-only transformer as clean JAX.

Rule: the names of the mesh's axes define how it is sharded.
"""

from __future__ import annotations

from meshwright.compiling.step.train import BuiltStep, build_step

__all__ = ["BuiltStep", "build_step"]
