"""What XLA's compilers say of a plan, for hardware that need not be here. Runs in a child process.

Rule: what cannot be compiled is said, with the reason, and never passes for something that was.
"""

from __future__ import annotations

from meshwright.errors import NotCompiledError

__all__ = ["NotCompiledError"]
