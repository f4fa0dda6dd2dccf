"""What XLA's compiled programs (HLO text) say: collectives by axis, loops multiplied out, the compiler's time.

Rule: pure; knows neither jax nor how a program came to be.
"""

from meshwright.compiling.hlo.program import ProgramFacts, read_program

__all__ = ["ProgramFacts", "read_program"]
