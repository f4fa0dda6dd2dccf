"""Questions to NVML: each may fail by itself, costs one field then, and is told as a problem. Runs in the probe.

Rule: "not supported" is an answer: the card has no such thing. Knows no question.

Source: NVIDIA, NVML API Reference Guide, nvmlReturn_t (docs.nvidia.com/deploy/nvml-api).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from meshwright_agent.facts.model import Problem, ProblemKind

NOT_SUPPORTED: Final = 3
NOT_FOUND: Final = 6
INVALID_ARGUMENT: Final = 2
FUNCTION_NOT_FOUND: Final = 13
VERSION_MISMATCH: Final = 25
"""NVML_ERROR_NOT_SUPPORTED, …_NOT_FOUND (an empty MIG slot), …_INVALID_ARGUMENT (beyond the last NVLink),
…_FUNCTION_NOT_FOUND and …_ARGUMENT_VERSION_MISMATCH (a driver older than the function, or than its structure)."""

NO_SUCH_LIST: Final = (NOT_SUPPORTED, FUNCTION_NOT_FOUND, INVALID_ARGUMENT)
"""What a list of processes that a driver or a kind of device does not have is refused with."""


class Questions:
    """Asks, and keeps what failed.

    Args:
        nvml: the module `pynvml`, or what behaves like it.
    """

    def __init__(self, nvml: Any) -> None:
        self.nvml = nvml
        self.problems: list[Problem] = []

    def ask(self, whom: str, function: str, *args: Any, none_on: Sequence[int] = (NOT_SUPPORTED,)) -> Any:
        """Returns what NVML answers; None if it cannot: a problem, unless its error is one of `none_on`."""
        try:
            return getattr(self.nvml, function)(*args)
        except self.nvml.NVMLError as error:
            if error.value not in none_on:
                self.tell(f"{whom}: {function}: {error}")
        except AttributeError:
            self.tell(f"{whom}: {function}: this release of nvidia-ml-py does not have it")
        return None

    def tell(self, text: str, kind: ProblemKind = "unanswered") -> None:
        """Keeps a problem."""
        self.problems.append(Problem(kind, text))


def to_text(value: Any) -> str | None:
    """Returns what NVML gives as bytes or as text, by its release, as text."""
    if value is None:
        return None
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
