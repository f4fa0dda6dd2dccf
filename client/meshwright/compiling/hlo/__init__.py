"""Reads XLA's compiled programs (protobuf): collectives by axis, loops multiplied out, the compiler's time.

Pure: independent of jax and of the origin of a program.
"""

from meshwright.compiling.hlo.program import ProgramFacts, StepEstimate, build_incomplete, read_program

__all__ = ["ProgramFacts", "StepEstimate", "build_incomplete", "read_program"]
