"""Frames: what agent and child say to each other over their socketpair, one JSON object a line.

Rule: a frame is either whole and of the right shape, or it is a `FrameError`; nothing half-read goes further.
Knows no socket, no process and no state: bytes in, frames out, and back. Standard library only, so that a
child can speak before it has imported anything heavy.

    agent → child   call  cancel
    child → agent   hello, or refusal; then for each call: progress, …, and result, failure or stopped
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, NoReturn, get_origin, get_type_hints

from meshwright.errors import ProblemError, RunFailedError, class_for

PROTOCOL_VERSION: Final = 1
"""Raised when a frame changes its meaning; both ends must say the same."""

MAX_FRAME_BYTES: Final = 64 * 2**20
"""Longest line, newline included. asyncio's own 64 KiB is less than one bench result with raw samples."""


class FrameError(ValueError):
    """Bytes that are no frame, or a frame that cannot be written."""


@dataclass(frozen=True)
class Hello:
    """The child's first word: who it is, and what it found (`about`: versions, platform, device count)."""

    protocol: int
    kind: str
    pid: int
    generation: int
    about: dict[str, Any]


@dataclass(frozen=True)
class Refusal:
    """The child's first and last word when it cannot work: the exception, and where it came from."""

    generation: int
    name: str
    message: str
    traceback: str


@dataclass(frozen=True)
class Call:
    """Do `op` with `arguments`."""

    id: int
    op: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Cancel:
    """Stop working on the call `id`; answer with `stopped`, or with what is ready."""

    id: int


@dataclass(frozen=True)
class Progress:
    """Something to tell while the call goes on."""

    id: int
    generation: int
    value: dict[str, Any]


@dataclass(frozen=True)
class Result:
    """The call's answer."""

    id: int
    generation: int
    result: dict[str, Any]


@dataclass(frozen=True)
class Failure:
    """The call's answer when its handler raised: a `ProblemError`, as its parts. The child lives on."""

    id: int
    generation: int
    code: str
    status: int
    detail: str
    hint: str
    errors: list[Any]
    log: list[Any]
    retry_after_s: float | None


@dataclass(frozen=True)
class Stopped:
    """The call's answer when it was cancelled and has stopped."""

    id: int
    generation: int


Frame = Hello | Refusal | Call | Cancel | Progress | Result | Failure | Stopped

FRAMES: Final[dict[str, type[Frame]]] = {
    "hello": Hello,
    "refusal": Refusal,
    "call": Call,
    "cancel": Cancel,
    "progress": Progress,
    "result": Result,
    "failure": Failure,
    "stopped": Stopped,
}
"""A frame's `type` on the line, and its class."""

_NAMES: Final = {frame: name for name, frame in FRAMES.items()}
_SHAPES: Final = {frame: get_type_hints(frame) for frame in _NAMES}


def format_frame(frame: Frame) -> bytes:
    """Returns the frame as one line, newline included. Lone surrogates (names that are no UTF-8) become "?".

    Raises:
        FrameError: it holds something that JSON cannot say (NaN, an array, …), or is over `MAX_FRAME_BYTES`.
    """
    content = {field.name: getattr(frame, field.name) for field in fields(frame)}
    try:
        text = json.dumps(
            {"type": _NAMES[type(frame)], **content},
            ensure_ascii=False,
            allow_nan=False,
            separators=(",", ":"),
        )
    except (TypeError, ValueError, RecursionError) as error:
        raise FrameError(f"a {_NAMES[type(frame)]} frame holds what JSON cannot say: {error}") from error
    line = text.encode(errors="replace") + b"\n"
    if len(line) > MAX_FRAME_BYTES:
        raise FrameError(f"a {_NAMES[type(frame)]} frame has {len(line)} bytes; the limit is {MAX_FRAME_BYTES}")
    return line


def parse_frame(line: bytes) -> Frame:
    """Returns the frame that a line (with or without its newline) says.

    Raises:
        FrameError: not JSON, not an object, an unknown `type`, fields missing, surplus, or of the wrong type.
    """
    try:
        content = json.loads(line, parse_constant=_refuse_constant, parse_float=_parse_finite)
    except (ValueError, RecursionError) as error:
        raise FrameError(f"not JSON ({error}): {line[:80]!r}") from error
    if not isinstance(content, dict) or str(content.get("type")) not in FRAMES:
        raise FrameError(f"not an object whose type is one of {', '.join(FRAMES)}: {line[:80]!r}")
    frame = FRAMES[content.pop("type")]
    _check_shape(frame, content)
    return frame(**content)


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")


def _parse_finite(digits: str) -> float:
    number = float(digits)
    return number if math.isfinite(number) else _refuse_constant(digits)


def _check_shape(frame: type[Frame], content: Mapping[str, Any]) -> None:
    shape = _SHAPES[frame]
    if shape.keys() != content.keys():
        raise FrameError(f"a {_NAMES[frame]} frame has {sorted(shape)}, this one {sorted(content)}")
    for name, hint in shape.items():
        if not _fits(content[name], hint):
            raise FrameError(f"{name} of a {_NAMES[frame]} frame is a {type(content[name]).__name__}, not {hint}")


def _fits(value: object, hint: Any) -> bool:
    if isinstance(value, bool):  # an int to Python, not to us
        return hint is bool
    if hint == float | None:
        return value is None or isinstance(value, int | float)
    return isinstance(value, get_origin(hint) or hint)


class FrameBuffer:
    """Cuts a stream of bytes into lines, whatever the pieces it comes in.

    Raises:
        FrameError: (from `feed`) a line is longer than `limit_bytes`.
    """

    def __init__(self, limit_bytes: int = MAX_FRAME_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._pending = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yields each line that `data` completes, without its newline; keeps the rest."""
        *complete, rest = data.split(b"\n")
        for piece in complete:
            self._append(piece, room_for_newline=1)
            line = bytes(self._pending)
            self._pending.clear()
            yield line
        self._append(rest, room_for_newline=0)

    def _append(self, piece: bytes, *, room_for_newline: int) -> None:
        self._pending += piece
        if len(self._pending) + room_for_newline > self._limit_bytes:
            raise FrameError(f"a line has more than {self._limit_bytes} bytes")


def build_failure(call_id: int, generation: int, error: ProblemError) -> Failure:
    """Returns the frame that carries `error` to the agent."""
    return Failure(
        id=call_id,
        generation=generation,
        code=error.code,
        status=error.status,
        detail=error.detail,
        hint=error.hint,
        errors=[dict(entry) for entry in error.errors],
        log=list(error.log),
        retry_after_s=error.retry_after_s,
    )


def build_error(failure: Failure) -> ProblemError:
    """Returns the exception that a child's handler raised: of the same class, with the same words.

    Raises:
        FrameError: `errors` are not objects.
    """
    if not all(isinstance(entry, Mapping) for entry in failure.errors):
        raise FrameError(f"errors of a failure frame are not objects: {failure.errors!r:.80}")
    error = class_for(failure.code, failure.status) if failure.code else RunFailedError
    return error(
        failure.detail,
        hint=failure.hint,
        errors=failure.errors,
        log=[str(line) for line in failure.log],
        retry_after_s=failure.retry_after_s,
        status=failure.status,
    )
