"""Builds one request, and the reader of its answer, from an endpoint and a caller's arguments. Pure: sends nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import BaseModel

from meshwright._calls.endpoints import Endpoint
from meshwright._calls.messages import Answer, Request
from meshwright._calls.outcomes import build_request_model, read_reply
from meshwright.spec import MeshLike, MeshSpec

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Call(Generic[T]):
    """One request, and the function that reads its answer: `read(answer, host)`.

    Attributes:
        makes_run: the agent starts a run for each request, so a request with a lost answer is not sent again.
        gone: the answer where the request was sent again after a lost answer and gets a 404; None: the 404 is an error.
    """

    endpoint: Endpoint[Any]
    request: Request
    read: Callable[[Answer, str], T]
    makes_run: bool = False
    gone: Answer | None = None

    @property
    def statuses(self) -> frozenset[int]:
        """The statuses that are answers."""
        return self.endpoint.statuses


def build(
    endpoint: Endpoint[Any],
    read: Callable[[Answer, str], T],
    *,
    parts: dict[str, str] | None = None,
    query: Mapping[str, object] | None = None,
    accept: str = "application/json",
) -> Call[T]:
    """Returns a call whose answer is read by `read`."""
    path = endpoint.build_path(parts or {}, query or {})
    return Call(endpoint, Request(endpoint.method, path, {"Accept": accept}), read)


def build_model(
    endpoint: Endpoint[R],
    *,
    fields: Mapping[str, Any] | None = None,
    parts: dict[str, str] | None = None,
    query: Mapping[str, object] | None = None,
    makes_run: bool = False,
    gone: BaseModel | None = None,
) -> Call[R]:
    """Returns a call whose answer is the endpoint's model.

    Args:
        endpoint: the endpoint.
        fields: fields of its request.
        parts: parts of its path.
        query: its query parameters.
        makes_run: the request starts a run, where the endpoint does not always start one.
        gone: the answer where a repeated request gets a 404.

    Raises:
        InvalidRequestError: the fields are not those of the endpoint's request, or a part of the path is not valid.
    """
    model: Any = endpoint.reply
    path = endpoint.build_path(parts or {}, query or {})
    headers = {"Accept": "application/json"}
    body = None
    if endpoint.request is not None:
        headers["Content-Type"] = "application/json"
        body = _write_body(build_request_model(endpoint.request, fields or {}))
    request = Request(endpoint.method, path, headers, body)
    return Call(
        endpoint,
        request,
        lambda answer, host: read_reply(model, answer, request, host),
        makes_run=endpoint.makes_run or makes_run,
        gone=None
        if gone is None
        else Answer(200, {"content-type": "application/json"}, gone.model_dump_json().encode()),
    )


def _write_body(request: BaseModel) -> bytes:
    """Returns the fields that were set."""
    said = request.model_dump(mode="json", exclude_unset=True)
    return json.dumps(said, ensure_ascii=False).encode()


def write_mesh(mesh: MeshLike | MeshSpec) -> object:
    """Returns a mesh as a request's field."""
    return str(mesh) if isinstance(mesh, MeshSpec) else write_sequence(mesh)


def print_mesh(mesh: MeshLike | MeshSpec | None) -> str | None:
    """Returns a mesh as text.

    Raises:
        InvalidMeshError: it is not a valid mesh.
    """
    if mesh is None or isinstance(mesh, str):
        return mesh
    return str(mesh if isinstance(mesh, MeshSpec) else MeshSpec.parse(mesh))


def write_model(value: object) -> object:
    """Returns a model or a training as JSON: only the fields that were set."""
    return value.model_dump(mode="json", exclude_unset=True) if isinstance(value, BaseModel) else write_sequence(value)


def write_sequence(value: object) -> object:
    """Returns sequences as the tuples that the wire models take, mappings as plain dicts."""
    match value:
        case str() | bytes() | BaseModel():
            return value
        case Mapping():
            return dict(value)
        case Sequence():
            return tuple(value)
    return value


def read_text(answer: Answer, host: str) -> str:
    """Returns an answer's body as text."""
    return answer.body.decode("utf-8", "replace")
