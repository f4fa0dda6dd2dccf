"""What XLA's compiled programs (protobuf) contain: collectives by axis, loops multiplied out, the compiler's time.

Pure: knows neither jax nor how a program came to be.
"""

from meshwright.compiling.hlo.program import ProgramFacts, build_incomplete, read_program

__all__ = ["ProgramFacts", "build_incomplete", "read_program"]
