"""Every setting of the agent, once: environment MESHWRIGHT_…, or the flag of the same name of `meshwright-agent serve`.

Knows what may be set and within which bounds; nothing of how it is used. All times in seconds, all sizes in bytes.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from meshwright.errors import ProblemError

DEFAULT_PORT = 8790
MOST_SIMULATED = 16384


def default_state_dir() -> Path:
    """Returns where runs and plans are kept: STATE_DIRECTORY (systemd), else $XDG_STATE_HOME, else ~/.local/state."""
    if systemd := os.environ.get("STATE_DIRECTORY"):
        return Path(systemd.split(":")[0])
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "meshwright"


class Settings(BaseSettings):
    """What an operator may set. Invalid values are refused at start, with the field's name."""

    model_config = SettingsConfigDict(env_prefix="MESHWRIGHT_", extra="ignore", frozen=True, allow_inf_nan=False)

    host: str = Field(default="127.0.0.1", description="address to listen on; empty: no TCP, only the unix socket")
    port: int = Field(default=DEFAULT_PORT, ge=0, le=65535, description="TCP port; 0 picks a free one")
    uds: Path | None = Field(default=None, description="unix socket to listen on as well")
    state_dir: Path = Field(default_factory=default_state_dir, description="where runs and plans are kept (SQLite)")
    cpu_devices: int | None = Field(
        default=None,
        ge=1,
        le=1024,
        description="run JAX on this many virtual CPU devices instead of accelerators",
    )
    simulate: str | None = Field(
        default=None,
        description="answer for this target, such as 64*h100:8, instead of looking at the host; nothing is measured",
    )
    memory_strategy: Literal["conservative", "balanced", "aggressive"] = Field(
        default="balanced", description="how much device memory the agent's own JAX may take: 60, 75 or 90 %"
    )
    idle_release_s: float = Field(
        default=30.0, gt=0, description="the worker gives accelerators back after so long without work"
    )
    probe_interval_s: float = Field(default=30.0, gt=0, description="how often driver, sysfs and worker are looked at")
    stale_after_s: float = Field(default=120.0, gt=0, description="a health check older than this is unknown")
    start_timeout_s: float = Field(default=120.0, gt=0, description="how long JAX may take to start")
    probe_timeout_s: float = Field(default=10.0, gt=0, description="how long a driver may take to answer")
    describe_timeout_s: float = Field(default=30.0, gt=0, description="how long JAX may take to list its devices")
    plan_timeout_s: float = Field(default=60.0, gt=0, description="how long one plan may take in the planner")
    compile_timeout_s: float = Field(
        default=600.0, gt=0, description="how long one compile may take, then it is killed"
    )
    compile_memory_bytes: int | None = Field(
        default=None,
        ge=1 << 26,
        description="host memory that a compile may take, else it is ended; unset: 3/4 of the host's or cgroup's",
    )
    crash_budget: int = Field(
        default=5, ge=1, description="crashes of the worker within 5 minutes before it stays down"
    )
    queue_limit: int = Field(default=8, ge=1, le=1024, description="runs that may wait; more are refused with 429")
    body_limit_bytes: int = Field(default=1 << 20, ge=1024, description="largest request body")
    plan_body_limit_bytes: int = Field(
        default=1 << 24,
        ge=1024,
        le=1 << 25,
        description="the same for POST /mesh/plan, whose topology may be many hosts",
    )
    keep_runs: int = Field(default=1000, ge=1, description="finished runs to keep")
    keep_plans: int = Field(default=10000, ge=1, description="plans to keep")
    drain_timeout_s: float = Field(default=5.0, gt=0, description="how long a shutdown waits for answers under way")
    log_level: Literal["debug", "info", "warning", "error"] = Field(default="info", description="of the agent's log")
    sysfs_root: Path = Field(default=Path("/sys"), description="for containers that mount the host's elsewhere")
    proc_root: Path = Field(default=Path("/proc"), description="likewise")
    dev_root: Path = Field(default=Path("/dev"), description="likewise")

    @field_validator("uds", "state_dir", "sysfs_root", "proc_root", "dev_root", mode="before")
    @classmethod
    def _no_folder_by_accident(cls, path: object, info: ValidationInfo) -> object:
        """An empty text would be the current folder: no unix socket is meant, or something is missing."""
        if path != "":
            return path
        if info.field_name == "uds":
            return None
        raise ValueError("is empty; give a folder, or leave the setting out")

    @field_validator("simulate", mode="after")
    @classmethod
    def _simulable(cls, target: str | None, info: ValidationInfo) -> str | None:
        """Returns the target as it is written canonically; an empty text is none, as in a manifest."""
        if not target:
            return None
        if info.data.get("cpu_devices") is not None:
            raise ValueError("stands beside cpu_devices; a host is simulated or has virtual devices; set one of them")
        return _read_simulated(target)

    @field_validator("state_dir", "uds", mode="after")
    @classmethod
    def _absolute(cls, path: Path | None) -> Path | None:
        return None if path is None else path.expanduser().absolute()


def _read_simulated(target: str) -> str:
    from meshwright.topology.assemble import build_target, read_target  # here: few agents simulate

    try:
        count = len(build_target(target).devices)
    except ProblemError as error:
        raise ValueError("; ".join(filter(None, (error.detail, error.hint)))) from error
    if count > MOST_SIMULATED:
        raise ValueError(
            f"{target} has {count} devices; an agent simulates up to {MOST_SIMULATED}, since every GET /devices lists "
            f"them all; plan on it with `meshwright plan --target {target}`, or simulate a part"
        )
    return str(read_target(target))
