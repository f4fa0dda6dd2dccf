"""The base of everything that crosses HTTP: frozen models, strict requests, tolerant replies, evidence on facts.

Rule: a model here is also the domain type. Requests refuse fields that they do not know; replies keep them, so that a
client reads the replies of a newer agent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Annotated, Any, ClassVar, Final, Literal, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictInt,
    StrictStr,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticKnownError

Basis = Literal["declared", "passive", "cached", "live", "measured"]
"""How a fact is known: given by a target or label · read from driver, sysfs or environment · JAX's view from an earlier
worker · JAX's view now · measured by a bench."""


MOST_ENTRIES: Final = 16384
"""In a list of a request: more than any host has devices."""


def _refuse_many(value: Any) -> Any:
    if isinstance(value, list) and len(value) > MOST_ENTRIES:
        limit = {"field_type": "List", "max_length": MOST_ENTRIES, "actual_length": len(value)}
        raise PydanticKnownError("too_long", limit)
    return value


COUNTED_FIRST: Final = BeforeValidator(_refuse_many)
"""Written last, for a list of a request: a list that is too long is rejected before its entries are read. Pydantic
reads all of them, and a megabyte of wrong entries takes seconds."""


Indices = Annotated[tuple[StrictInt, ...], Field(min_length=1), COUNTED_FIRST]

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
    """A request, or a piece of one: unknown fields are refused."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def iterate_parts(base: type[RequestPart] = RequestPart) -> Iterator[type[RequestPart]]:
    """Yields every part of a request that is defined."""
    for part in base.__subclasses__():
        yield part
        yield from iterate_parts(part)


class Evidence(Reply):
    """A fact, or a group of facts read together: how it is known, since when, and how old it was when written."""

    basis: Basis
    observed_at: datetime = Field(description="when it was observed, UTC")
    age_s: float = Field(ge=0, description="seconds between observation and this reply")


class Notice(Reply):
    """Something that is not refused but should be known."""

    code: str
    message: str
    hint: str = ""


class DeviceRef(Reply):
    """A device of a plan or lease, as another process finds it again, by the strongest of uuid, coords and position."""

    host: str
    local_index: int = Field(description="0, 1, … on this host: what `devices` in a request names")
    granule: int = Field(default=0, description="ordinal of the granule (slice, or host) that it belongs to")
    position: int = Field(description="its place in the granule's canonical order")
    uuid: str | None = None
    pci_bus_id: str | None = None
    coords: tuple[int, ...] | None = None
    core_on_chip: int | None = None
    slice_index: int | None = None
    process_index: int | None = None

    def to_reference(self) -> DeviceRef:
        """Returns only what identifies the device, of one that has more fields."""
        return DeviceRef(**{name: getattr(self, name) for name in DeviceRef.model_fields})


class DeviceSelection(RequestPart):
    """Choose devices by number rather than by name: those with as few slow links between them as can be."""

    count: Annotated[StrictInt, Field(ge=1)] | None = Field(default=None, description="null: all but `exclude`")
    exclude: tuple[StrictInt | StrictStr, ...] = Field(default=(), description="named as in a plan's `devices`")

    @model_validator(mode="after")
    def _check_any(self) -> DeviceSelection:
        if self.count is None and not self.exclude:
            raise ValueError('it selects nothing; write {"count": 4} or {"exclude": [0]}, or leave it out for all')
        return self


M = TypeVar("M", bound=BaseModel)


def read_known(model: type[M], data: bytes | Mapping[str, Any] | None) -> M | None:
    """Returns an event or a record as its model; None where this release cannot read it."""
    try:
        return model.model_validate_json(data) if isinstance(data, bytes) else model.model_validate(data)
    except ValidationError:
        return None
