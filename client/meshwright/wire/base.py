"""The base of everything that crosses HTTP: frozen models, strict requests, tolerant replies, evidence on facts.

Rule: a model here is also the domain type. Requests refuse fields they do not know, unless the client's
`schema_version` is newer than ours; then unknown fields are dropped and named in `ignored_fields`. Replies keep
fields they do not know, so that an old client survives a new agent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Annotated, Any, ClassVar, Final, Literal, Self, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    StrictStr,
    model_validator,
)
from pydantic_core import PydanticKnownError

SCHEMA_VERSION: Final = "1"
"""The version of requests and replies that this release speaks: "major" or "major.minor"."""

Basis = Literal["declared", "passive", "cached", "live", "measured"]
"""How a fact is known: said by a target or label · read from driver, sysfs or environment · JAX's view from an
earlier worker · JAX's view now · measured by a bench."""


def parse_version(text: str) -> tuple[int, int]:
    """Returns (major, minor) of a schema version such as "1" or "1.2".

    Raises:
        ValueError: it is neither.
    """
    parts = text.split(".")
    if not 1 <= len(parts) <= 2 or not all(p.isascii() and p.isdigit() and len(p) <= 6 for p in parts):
        raise ValueError(
            f'schema_version {text[:40]!r} is not "major" or "major.minor"; this agent speaks "{SCHEMA_VERSION}"'
        )
    return int(parts[0]), int(parts[1]) if len(parts) == 2 else 0


def _check_version(text: str) -> str:
    parse_version(text)
    return text


SchemaVersion = Annotated[str, AfterValidator(_check_version), Field(description="the version that the sender speaks")]


MOST_ENTRIES: Final = 16384
"""In a list of a request: more than any host has devices."""


def _refuse_many(value: Any) -> Any:
    if isinstance(value, list) and len(value) > MOST_ENTRIES:
        limit = {"field_type": "List", "max_length": MOST_ENTRIES, "actual_length": len(value)}
        raise PydanticKnownError("too_long", limit)
    return value


COUNTED_FIRST: Final = BeforeValidator(_refuse_many)
"""Written last, for a list of a request: one that is too long is refused before its entries are looked at. Pydantic
looks at all of them, and a megabyte of wrong ones takes it seconds."""


LINE_PATTERN: Final = r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]*$"
"""Text without a line break or another control character."""

Line = Annotated[StrictStr, Field(pattern=LINE_PATTERN)]
"""Free text of a request that is shown in tables, logs and reasons: one line."""


class Wire(BaseModel):
    """Immutable, and validated when made."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, allow_inf_nan=False)


class Reply(Wire):
    """What the agent says: unknown fields are kept."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="allow", allow_inf_nan=False)


class RequestPart(Wire):
    """A piece of a request: unknown fields are refused."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def iterate_parts(base: type[RequestPart] = RequestPart) -> Iterator[type[RequestPart]]:
    """Yields every part of a request that is defined."""
    for part in base.__subclasses__():
        yield part
        yield from iterate_parts(part)


class Request(RequestPart):
    """What a client asks. `schema_version` decides how unknown fields are taken."""

    schema_version: SchemaVersion = SCHEMA_VERSION
    _ignored: tuple[str, ...] = PrivateAttr(default=())

    @property
    def ignored_fields(self) -> tuple[str, ...]:
        """Dotted names of fields that a newer client sent and that were dropped."""
        return self._ignored

    @model_validator(mode="wrap")
    @classmethod
    def _tolerate_newer(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if not (isinstance(data, Mapping) and _is_newer(data.get("schema_version"))):
            return handler(data)
        ignored: list[str] = []
        request = handler(_prune(cls, data, ignored.append, prefix=""))
        request._ignored = tuple(ignored)
        return request


def _is_newer(version: object) -> bool:
    try:
        return isinstance(version, str) and parse_version(version) > parse_version(SCHEMA_VERSION)
    except ValueError:
        return False


def _prune(
    model: type[BaseModel], data: Mapping[str, Any], drop: Callable[[str], None], *, prefix: str
) -> dict[str, Any]:
    kept = {}
    for name, value in data.items():
        field = model.model_fields.get(name)
        if field is None:
            drop(prefix + name)
            continue
        part = next(_parts(field.annotation), None)
        nested = part is not None and isinstance(value, Mapping)
        kept[name] = _prune(part, value, drop, prefix=f"{prefix}{name}.") if nested and part else value
    return kept


def _parts(annotation: object) -> Iterator[type[RequestPart]]:
    if isinstance(annotation, type) and issubclass(annotation, RequestPart):
        yield annotation
    for argument in get_args(annotation):
        yield from _parts(argument)


class Evidence(Reply):
    """A fact, or a group of facts read together: how it is known, since when, and how old it was when written."""

    basis: Basis
    observed_at: datetime = Field(description="when it was observed, UTC")
    age_s: float = Field(ge=0, description="seconds between observation and this reply (refreshed once a second)")


class Notice(Reply):
    """Something that is not refused but should be known."""

    code: str
    message: str
    hint: str = ""
