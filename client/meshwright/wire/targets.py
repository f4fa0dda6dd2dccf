"""Targets: the hardware that plans can be made on without having it. What `GET /targets` answers."""

from __future__ import annotations

from pydantic import Field

from meshwright.wire.base import Reply
from meshwright.wire.devices import Platform


class TargetHost(Reply):
    """A form of host: how many devices, and what joins them."""

    target: str = Field(description='how a plan asks for one: "h100:8"')
    device_count: int
    links: dict[str, int] = Field(description='kind → pairs of devices so joined: {"NV18": 28}')
    domain_device_count: int | None = Field(
        default=None, description="devices of the NVLink domain that such hosts share; null: none spans hosts"
    )
    text: str = Field(description="what it is, in words")
    source: str


class TargetSlice(Reply):
    """A TPU slice that has a name. Its chip's `shapes` may allow more than those that have one."""

    name: str
    aliases: tuple[str, ...]
    chip: str
    target: str = Field(description='how a plan asks for it: "v5p:4x4x28"; its name works too')
    shape: tuple[int, ...] = Field(description="in chips, as the generation writes it: x, y or x, y, z")
    wrap: tuple[bool, ...] = Field(description="which of x, y, z close to rings")
    can_twist: bool = Field(description="whether `_twisted` may stand behind the target")
    chip_count: int
    device_count: int = Field(description="JAX devices")
    host_count: int
    host_shape: tuple[int, ...] = Field(description="chips of one host in x, y, z")


class TargetChip(Reply):
    """A chip that targets may name."""

    chip: str = Field(description='as targets are written: "v5p", "h100", "cpu"')
    name: str = Field(description='"TPU v5p", "H100 SXM"')
    aliases: tuple[str, ...]
    platform: Platform
    kind: str = Field(description="what `jax.Device.device_kind` says, in a plan's topology")
    devices_per_chip: int = Field(description="JAX devices")
    device_memory_bytes: int | None = Field(
        default=None,
        description="of one device: of a GPU as its driver reports it, of a TPU as published; null: not known",
    )
    shapes: str | None = Field(default=None, description="of a TPU: which slices there are, in words")
    hosts: tuple[TargetHost, ...] = Field(default=(), description="of a GPU or CPU: the hosts there are")
    source: str


class Targets(Reply):
    """`GET /targets`: what is known, by platform and generation."""

    grammar: str = Field(description="how a target is written")
    chips: tuple[TargetChip, ...]
    slices: tuple[TargetSlice, ...]
