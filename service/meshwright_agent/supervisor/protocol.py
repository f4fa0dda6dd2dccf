"""Frames: the messages of agent and child over their socketpair, one JSON object per line.

Rule: a frame is either complete and valid, or it is a `FrameError`. Partial frames are never returned. This module
converts bytes to frames and back. It does not depend on sockets, processes or states.

    agent → child   call  cancel
    child → agent   hello, or refusal; then for each call: progress, …, and result, failure or stopped
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from meshwright.errors import ProblemError, RunFailedError, class_for

PROTOCOL_VERSION: Final = 2
"""Incremented when a frame changes its meaning. Both ends must have the same version."""

MAX_FRAME_BYTES: Final = 64 * 2**20
"""Longest line, newline included. asyncio's own 64 KiB is less than one bench result with raw samples."""


class FrameError(ValueError):
    """Bytes that are not a frame, or a frame that cannot be written."""


class _Frame:
    __pydantic_config__ = ConfigDict(strict=True, extra="forbid", hide_input_in_errors=True)


@dataclass(frozen=True)
class Hello(_Frame):
    """The child's first frame: its identity."""

    protocol: int
    kind: str
    pid: int
    generation: int
    type: Literal["hello"] = "hello"


@dataclass(frozen=True)
class Refusal(_Frame):
    """The child's only frame when it cannot work: the exception and its traceback."""

    name: str
    message: str
    traceback: str
    type: Literal["refusal"] = "refusal"


@dataclass(frozen=True)
class CallFrame(_Frame):
    """Requests the operation `op` with `arguments`."""

    id: int
    op: str
    arguments: dict[str, Any]
    type: Literal["call"] = "call"


@dataclass(frozen=True)
class CancelFrame(_Frame):
    """Requests the end of the call `id`. The child answers with `stopped` or with a finished result."""

    id: int
    type: Literal["cancel"] = "cancel"


@dataclass(frozen=True)
class ProgressFrame(_Frame):
    """A progress report during the call."""

    id: int
    value: dict[str, Any]
    type: Literal["progress"] = "progress"


@dataclass(frozen=True)
class ResultFrame(_Frame):
    """The call's answer."""

    id: int
    result: dict[str, Any]
    type: Literal["result"] = "result"


@dataclass(frozen=True)
class FailureFrame(_Frame):
    """The call's answer when its handler raised: the parts of a `ProblemError`. The child continues."""

    id: int
    code: str
    status: int
    detail: str
    hint: str
    errors: list[dict[str, Any]]
    log: list[str]
    retry_after_s: float | None
    type: Literal["failure"] = "failure"

    @classmethod
    def of(cls, call_id: int, error: ProblemError) -> FailureFrame:
        """Returns the frame that carries `error` to the agent."""
        same = {name: getattr(error, name) for name in ("code", "status", "detail", "hint", "retry_after_s")}
        return cls(call_id, errors=list(error.errors), log=list(error.log), **same)

    def build_error(self) -> ProblemError:
        """Returns the exception that the child's handler raised, with the same class and text."""
        error = class_for(self.code, self.status) if self.code else RunFailedError
        parts = {name: value for name, value in vars(self).items() if name not in {"id", "type"}}
        return error(**parts | {"code": self.code or None})


@dataclass(frozen=True)
class Stopped(_Frame):
    """The call's answer when it was cancelled and has stopped."""

    id: int
    type: Literal["stopped"] = "stopped"


Frame = Hello | Refusal | CallFrame | CancelFrame | ProgressFrame | ResultFrame | FailureFrame | Stopped

_FRAMES: Final[TypeAdapter[Frame]] = TypeAdapter(Annotated[Frame, Field(discriminator="type")])


def format_frame(frame: Frame) -> bytes:
    """Returns the frame as one line, newline included. Lone surrogates (names that are not UTF-8) become "?".

    Raises:
        FrameError: the frame has a value that JSON does not support (NaN, an array, …), or exceeds `MAX_FRAME_BYTES`.
    """
    try:
        text = json.dumps(vars(frame), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise FrameError(f"a {frame.type} frame holds what JSON cannot say: {error}") from error
    line = text.encode(errors="replace") + b"\n"
    if len(line) > MAX_FRAME_BYTES:
        raise FrameError(f"a {frame.type} frame has {len(line)} bytes; the limit is {MAX_FRAME_BYTES}")
    return line


def parse_frame(line: bytes) -> Frame:
    """Returns the frame of a line, with or without its newline.

    Raises:
        FrameError: not JSON, not an object, an unknown `type`, fields missing, surplus, or of the wrong type.
    """
    try:
        return _FRAMES.validate_json(line)
    except ValidationError as error:
        raise FrameError(f"no frame ({error.errors(include_url=False)[0]['msg']}): {line[:80]!r}") from error
