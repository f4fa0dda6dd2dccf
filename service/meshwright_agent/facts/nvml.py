"""Questions to NVML: their list and their calls. `facts.nvidia` starts NVML and lists the cards.

A question that fails costs one field and is listed in `problems` or `answers`. A required question has `parts`: the
health of these parts depends on its answer. Only "not supported", "deprecated" and a missing function mean that a card
lacks the feature; any other error makes the part unknown. "No permission" is the agent's fault and makes the driver
unknown too.

Source: NVIDIA, NVML API Reference Guide, nvmlReturn_t (docs.nvidia.com/deploy/nvml-api), and nvml.h of CUDA 13.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from meshwright_agent.facts.model import ProblemKind, SourceProblem

LOST: Final[Mapping[int, str]] = {
    15: "GPU is lost: it has fallen off the bus or is not accessible",
    16: "the GPU must be reset before it can be used again",
}

_INVALID_ARGUMENT, _NOT_SUPPORTED, NO_PERMISSION, _NOT_FOUND, _FUNCTION_NOT_FOUND = 2, 3, 4, 6, 13
_VERSION_MISMATCH, _DEPRECATED = 25, 26
_ABSENT: Final = frozenset({_NOT_SUPPORTED, _FUNCTION_NOT_FOUND, _DEPRECATED})
_END: Final = frozenset({_NOT_SUPPORTED, _INVALID_ARGUMENT})
_UNKNOWN: Final = 999

Part = Literal["device", "thermal", "memory", "link"]

ANSWERED, ABSENT = "answered", "absent"
"""The result of a question: one of these, or the name of NVML's error."""


@dataclass(frozen=True)
class Query:
    """One question.

    Attributes:
        parts: parts of the card that are `unknown` without an answer; empty: the question is not required.
        arguments: constant arguments after the handle.
        field_id: number of a 32-bit field for nvmlDeviceGetFieldValues.
        absent_on: errors which mean that the card or its driver does not have the feature.
    """

    function: str
    parts: tuple[Part, ...] = ()
    arguments: tuple[int, ...] = ()
    field_id: int | None = None
    absent_on: frozenset[int] = _ABSENT


def _describe(function: str, *absent_on: int) -> Query:
    return Query(function, absent_on=frozenset({_NOT_SUPPORTED, _DEPRECATED, *absent_on}))


def _field(field_id: int, *parts: Part) -> Query:
    return Query("nvmlDeviceGetFieldValues", parts, field_id=field_id)


_EVERY_CARD_HAS_IT: Final[frozenset[int]] = frozenset()

QUESTIONS: Final[Mapping[str, Query]] = {
    # the driver
    "init": Query("nvmlInit", ("device",), absent_on=_EVERY_CARD_HAS_IT),
    "count": Query("nvmlDeviceGetCount", ("device",), absent_on=_EVERY_CARD_HAS_IT),
    "driver_version": _describe("nvmlSystemGetDriverVersion"),
    "cuda_version": _describe("nvmlSystemGetCudaDriverVersion_v2"),
    "shutdown": _describe("nvmlShutdown"),
    # identity of the card
    "handle": Query("nvmlDeviceGetHandleByIndex", ("device",), absent_on=_EVERY_CARD_HAS_IT),
    "pci": Query("nvmlDeviceGetPciInfo", ("device",), absent_on=_EVERY_CARD_HAS_IT),
    "name": Query("nvmlDeviceGetName", ("device",), absent_on=_EVERY_CARD_HAS_IT),
    "uuid": Query("nvmlDeviceGetUUID", ("device",)),
    "memory": Query("nvmlDeviceGetMemoryInfo", ("device",)),
    "mig_mode": Query("nvmlDeviceGetMigMode", ("device",)),
    "mig_slots": Query("nvmlDeviceGetMaxMigDeviceCount", ("device",), absent_on=_EVERY_CARD_HAS_IT),
    "mig_instance": Query(  # a slot may be empty
        "nvmlDeviceGetMigDeviceHandleByIndex", ("device",), absent_on=frozenset({_NOT_FOUND, _INVALID_ARGUMENT})
    ),
    # description
    "architecture": _describe("nvmlDeviceGetArchitecture"),
    "compute_capability": _describe("nvmlDeviceGetCudaComputeCapability"),
    "compute_mode": _describe("nvmlDeviceGetComputeMode"),
    "minor": _describe("nvmlDeviceGetMinorNumber"),
    "processes": _describe("nvmlDeviceGetComputeRunningProcesses"),
    "mps_clients": _describe("nvmlDeviceGetMPSComputeRunningProcesses", _FUNCTION_NOT_FOUND, _INVALID_ARGUMENT),
    "nvlink_remote_type": _describe("nvmlDeviceGetNvLinkRemoteDeviceType"),
    "nvlink_remote": _describe("nvmlDeviceGetNvLinkRemotePciInfo"),
    "nvlink_speed": _field(90),  # NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON
    "ancestor": _describe("nvmlDeviceGetTopologyCommonAncestor"),
    # health
    "recovery": _field(230, "device"),  # NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
    "temperature_celsius": Query("nvmlDeviceGetTemperature", ("thermal",), (0,)),  # NVML_TEMPERATURE_GPU
    "slowdown_celsius": Query("nvmlDeviceGetTemperatureThreshold", ("thermal",), (1,)),
    "shutdown_celsius": Query("nvmlDeviceGetTemperatureThreshold", ("thermal",), (0,)),
    "margin_celsius": Query("nvmlDeviceGetMarginTemperature", ("thermal",)),
    # NVML_FI_DEV_TEMPERATURE_…_TLIMIT, as `nvidia-smi` names them. Ada and later report them instead of thresholds,
    # which their drivers may no longer report. An H100's slowdown is at −2 °C of margin (NVIDIA/NVSentinel#1371).
    "slowdown_margin_celsius": _field(194, "thermal"),
    "shutdown_margin_celsius": _field(193, "thermal"),
    "slowdowns": Query("nvmlDeviceGetCurrentClocksThrottleReasons", ("thermal",)),
    "power_limit_watts": Query("nvmlDeviceGetEnforcedPowerLimit"),  # text only
    "power_default_watts": Query("nvmlDeviceGetPowerManagementDefaultLimit"),
    "uncorrectable_count": Query("nvmlDeviceGetTotalEccErrors", ("memory",), (1, 0)),  # …_UNCORRECTED, volatile
    "uncorrectable_lifetime_count": Query("nvmlDeviceGetTotalEccErrors", ("memory",), (1, 1)),  # aggregate
    "remapped_rows": Query("nvmlDeviceGetRemappedRows", ("memory",)),
    "retirement_pending": Query("nvmlDeviceGetRetiredPagesPendingStatus", ("memory",)),
    "pcie_width": Query("nvmlDeviceGetCurrPcieLinkWidth", ("link",)),
    "pcie_most_width": Query("nvmlDeviceGetMaxPcieLinkWidth", ("link",)),
    "pcie_generation": Query("nvmlDeviceGetCurrPcieLinkGeneration", ("link",)),
    "pcie_most_generation": Query("nvmlDeviceGetMaxPcieLinkGeneration", ("link",)),
    "performance_state": Query("nvmlDeviceGetPerformanceState", ("link",)),
    "nvlink_state": Query("nvmlDeviceGetNvLinkState", ("link",)),
    "nvlink_errors": Query("nvmlDeviceGetNvLinkErrorCounter", ("link",)),
    # a driver older than the structure's version counts as a driver without the function
    "fabric": Query("nvmlDeviceGetGpuFabricInfoV", ("link",), absent_on=_ABSENT | {_VERSION_MISMATCH}),
}


def name_error(nvml: Any, code: int) -> str:
    """Returns the module's name of an error."""
    names = (name for name in dir(nvml) if name.startswith("NVML_ERROR_") and getattr(nvml, name) == code)
    return next(names, f"NVML error {code}")


class Questions:
    """Calls NVML and records the results: one object for the driver, and one for each card.

    Args:
        nvml: the module `pynvml` or a replacement.
        whom: the subject of the questions, as named in problems.
        problems: receives the failures that are problems.

    Attributes:
        answers: required question → `ANSWERED`, `ABSENT`, or the name of an error. A question asked several times has
            the worst result.
        lost: the driver's report that the card is lost or must be reset; None: neither was reported.
    """

    def __init__(self, nvml: Any, whom: str, problems: list[SourceProblem]) -> None:
        self.nvml = nvml
        self.whom = whom
        self.problems = problems
        self.answers: dict[str, str] = {}
        self.lost: str | None = None

    def ask(self, name: str, *args: Any, is_end: bool = False) -> Any:
        """Returns NVML's answer, or None. A missing answer is a problem unless the card does not have the feature.

        Args:
            args: the handle and the variable arguments.
            is_end: "invalid argument" and "not supported" mark the end of the links.
        """
        answer, came, error = self._call(name, args, is_end=is_end)
        if came not in (ANSWERED, ABSENT):
            self.add_problem(f"{self.whom}: {QUESTIONS[name].function}: {error}")
        return answer

    def ask_health(self, name: str, *args: Any, is_end: bool = False) -> Any:
        """Returns NVML's answer, or None. A lost card is not asked again, because each call may block."""
        return None if self.lost else self._call(name, args, is_end=is_end)[0]

    def _call(self, name: str, args: tuple[Any, ...], *, is_end: bool) -> tuple[Any, str, str]:
        """Returns the answer, the result of the question, and the error's text."""
        question = QUESTIONS[name]
        fields = () if question.field_id is None else ([question.field_id],)
        function = getattr(self.nvml, question.function, None)
        answer: Any = None
        code, error, absent_on = 0, "", question.absent_on
        if function is None:
            code, error = _FUNCTION_NOT_FOUND, "this release of nvidia-ml-py does not have it"
        else:
            try:
                answer = function(*args, *question.arguments, *fields)
            except self.nvml.NVMLError as raised:
                code, error = raised.value, str(raised)
        if fields and not code:
            code = answer[0].nvmlReturn if answer else _UNKNOWN
            answer, error = (
                (None, name_error(self.nvml, code)) if code else (ctypes.c_int32(answer[0].value.uiVal).value, "")
            )
            absent_on |= {_INVALID_ARGUMENT}  # an older driver does not know the field's number
        if code in LOST:
            self.lost = LOST[code]
        if is_end and code in _END:
            return None, ABSENT, error
        came = ANSWERED if code == 0 else ABSENT if code in absent_on else name_error(self.nvml, code)
        if question.parts and (self.answers.get(name, ABSENT) == ABSENT or came not in (ANSWERED, ABSENT)):
            self.answers[name] = came
        if question.parts and code == NO_PERMISSION:
            self.add_problem(f"{self.whom}: {question.function}: {error}", "unreadable")
        return answer, came, error

    def add_problem(self, text: str, kind: ProblemKind = "unanswered", cards: Iterable[str | None] = ()) -> None:
        """Records a problem. `cards`: addresses, as in `SourceProblem`."""
        self.problems.append(SourceProblem(kind, text, tuple(cards)))


def to_text(value: Any) -> str | None:
    """Returns as text what NVML returns as bytes or text, depending on its release."""
    if value is None:
        return None
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def find_nvml() -> Any:
    """Returns the module `pynvml` (package nvidia-ml-py); None if it is not installed."""
    try:
        return importlib.import_module("pynvml")
    except ImportError:
        return None
