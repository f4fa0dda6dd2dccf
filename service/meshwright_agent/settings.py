"""Every setting of the agent, once: environment MESHWRIGHT_…, or the flag of the same name of `meshwright-agent serve`.

Defines the settings and their bounds, independent of their use. All times in seconds, all sizes in bytes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Final, Literal, get_args

from pydantic import Field, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from meshwright.errors import ProblemError

DEFAULT_PORT = 8790
MAX_SIMULATED = 4096
CLIENT_VARIABLES: Final = frozenset(
    {"URL", "TOKEN", "TOKEN_FILE", "CA_FILE", "CLIENT_CERT_FILE", "CLIENT_KEY_FILE", "LEASE", "FLEET", "PLAN"}
)
"""What `meshwright` reads, after MESHWRIGHT_. docs/reference/client.md has the meanings."""


def default_state_dir() -> Path:
    """Returns the folder of the database: STATE_DIRECTORY (systemd), else $XDG_STATE_HOME, else ~/.local/state."""
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
    tokens_file: Path | None = Field(
        default=None, description="file of tokens, one a line; without it every user may read, on loopback only"
    )
    insecure: bool = Field(
        default=False, description="without a token file: on any address, and over TCP every user may do everything"
    )
    tls_cert_file: Path | None = Field(default=None, description="certificate with its chain, PEM: TCP speaks TLS")
    tls_key_file: Path | None = Field(default=None, validate_default=True, description="its key, PEM, not encrypted")
    tls_client_ca_file: Path | None = Field(
        default=None, validate_default=True, description="CA that signed the certificates of clients; probes need none"
    )
    public_metrics: bool = Field(default=False, description="GET /metrics needs no token, as /healthz and /readyz")
    allowed_hosts: str = Field(
        default="", description="names beside its own that it answers to, comma-separated; *.example.org; * for any"
    )
    uds_admins: str = Field(
        default="root,self,@meshwright",
        description="who is admin on the unix socket: users by name or number, self for the agent's own, @GROUP; "
        "every other user may read",
    )
    state_dir: Path = Field(default_factory=default_state_dir, description="SQLite: leases, runs, plans, health")
    cpu_devices: int | None = Field(
        default=None, ge=1, le=1024, description="run JAX on this many virtual CPU devices instead of accelerators"
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
    hold: Literal["never", "on_demand", "always"] = Field(
        default="on_demand",
        description="on_demand: JAX is started on free accelerators once to learn its view, again after a crash, and "
        "by benches; never: by benches alone; always: the worker keeps accelerators warm until they are released or "
        "leased, and takes them again when leases end",
    )
    probe_interval_s: float = Field(default=30.0, gt=0, description="how often driver, sysfs and worker are probed")
    start_timeout_s: float = Field(default=120.0, gt=0, description="how long JAX may take to start")
    probe_timeout_s: float = Field(default=10.0, gt=0, description="how long a driver may take to answer")
    compile_timeout_s: float = Field(default=600.0, gt=0, description="how long a compile may take, then it is killed")
    compile_memory_bytes: int | None = Field(
        default=None,
        ge=1 << 26,
        description="host memory that a compile may take, else it is ended; unset: 3/4 of the host's or cgroup's",
    )
    expect: str = Field(
        default="",
        description="accelerators that must be here: 8, as /devices counts them, MIG instances each; or h100:8, "
        "cards of that chip, divided or not; empty: those that were seen",
    )
    kernel_log: str = Field(default="/dev/kmsg", description="where NVIDIA's driver reports XIDs; empty: not read")
    label_file: Path | None = Field(
        default=None,
        description="node-feature-discovery's feature file to write, in /etc/kubernetes/node-feature-discovery/"
        "features.d",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(default="info", description="of the agent's log")
    log_format: Literal["text", "json"] = Field(default="text", description="lines of text, or one JSON object a line")
    host_root: Path = Field(
        default=Path("/"),
        description="where the host's sys, proc, dev and etc are, for containers that mount them elsewhere",
    )

    @property
    def stale_after_s(self) -> float:
        """An observation that is older is unknown: three probes, each with the time that it may take, have failed."""
        return 3 * (self.probe_interval_s + self.probe_timeout_s)

    @property
    def database_path(self) -> Path:
        """The file of the agent's store; a simulated host has one of its own."""
        return self.state_dir / ("meshwright.sqlite3" if self.simulate is None else "simulated.sqlite3")

    @field_validator("*", mode="before")
    @classmethod
    def _no_folder_by_accident(cls, value: object, info: ValidationInfo) -> object:
        """Rejects an empty path, which would mean the current folder; of an optional path it means no path."""
        kind = cls.model_fields[str(info.field_name)].annotation
        if value == "" and kind is Path:
            raise ValueError("is empty; give a folder, or leave the setting out")
        return None if value == "" and Path in get_args(kind) else value

    @field_validator("expect", mode="after")
    @classmethod
    def _expectable(cls, text: str, info: ValidationInfo) -> str:
        from meshwright.topology.chips import parse_chip_count  # here: it reads tables when a chip is named

        if not text.strip():
            return ""
        for other in ("cpu_devices", "simulate"):
            if info.data.get(other) is not None:
                raise ValueError(f"stands beside {other}, and only this host's accelerators are counted; leave one out")
        return str(parse_chip_count(text))

    @field_validator("tls_key_file", mode="after")
    @classmethod
    def _key_of_certificate(cls, key: Path | None, info: ValidationInfo) -> Path | None:
        certificate = info.data.get("tls_cert_file")
        if (certificate is None) != (key is None):
            missing = "tls_key_file" if key is None else "tls_cert_file"
            raise ValueError(f"certificate and key belong together, and {missing} is missing; give both, or neither")
        return key

    @field_validator("tls_client_ca_file", mode="after")
    @classmethod
    def _client_ca_of_tls(cls, path: Path | None, info: ValidationInfo) -> Path | None:
        if path is not None and info.data.get("tls_cert_file") is None:
            raise ValueError("clients show certificates over TLS only; give tls_cert_file and tls_key_file as well")
        return path

    @field_validator("simulate", mode="after")
    @classmethod
    def _simulable(cls, target: str | None, info: ValidationInfo) -> str | None:
        """Returns the target in its canonical form. An empty text, as in a manifest, means no target."""
        if not target:
            return None
        if info.data.get("cpu_devices") is not None:
            raise ValueError("stands beside cpu_devices; a host is simulated or has virtual devices; set one of them")
        return _read_simulated(target)

    @field_validator("label_file", mode="after")
    @classmethod
    def _labels_of_hardware(cls, path: Path | None, info: ValidationInfo) -> Path | None:
        if path is not None and info.data.get("simulate") is not None:
            raise ValueError("stands beside simulate, and what is simulated is not on this node; leave one of them out")
        return path

    @field_validator("*", mode="after")
    @classmethod
    def _absolute(cls, value: object) -> object:
        return value.expanduser().absolute() if isinstance(value, Path) else value


def name_unknown(environ: Iterable[str]) -> str:
    """Returns the variables MESHWRIGHT_… that nothing reads, each with the nearest setting; empty without any."""
    known = {f"MESHWRIGHT_{name.upper()}" for name in Settings.model_fields}
    read = known | {f"MESHWRIGHT_{name}" for name in CLIENT_VARIABLES}
    unknown = sorted(name for name in environ if name.startswith("MESHWRIGHT_") and name.upper() not in read)
    near = {name: "".join(get_close_matches(name, known, n=1, cutoff=0.85)) for name in unknown}
    return ", ".join(f"{name} ({nearest}?)" if nearest else name for name, nearest in near.items())


def _read_simulated(target: str) -> str:
    from meshwright.topology.targets import build_target, read_target  # here: few agents simulate

    try:
        count = len(build_target(target).devices)
    except ProblemError as error:
        raise ValueError("; ".join(filter(None, (error.detail, error.hint)))) from error
    if count > MAX_SIMULATED:
        raise ValueError(
            f"{target} has {count} devices; an agent simulates up to {MAX_SIMULATED}, since every GET /devices lists "
            f"them all; plan on it with `meshwright plan --target {target}`, or simulate a part"
        )
    return str(read_target(target))
