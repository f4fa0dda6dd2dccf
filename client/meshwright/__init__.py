"""What people import: the client of the device agent, meshes, and the errors. Imports neither jax nor numpy."""

from __future__ import annotations

from meshwright.errors import MeshwrightError, PlanMismatchError, ProblemError
from meshwright.spec import MeshSpec

__all__ = ["MeshSpec", "MeshwrightError", "PlanMismatchError", "ProblemError"]
