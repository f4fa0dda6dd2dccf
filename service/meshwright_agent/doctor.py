"""The doctor: examines a host before the agent starts, or when JAX does not start, and suggests repairs.

The facts are gathered once: settings, packages, the reports of the probe and of JAX, and whether the state directory
can be written. Each check then reads one of the facts, most basic first. The doctor starts JAX only in a device worker
and under the agent's conditions: not on devices that another process holds or has leased.
"""

from __future__ import annotations

import asyncio
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from meshwright.compiling.compilers import COMPILERS, explain_missing, read_versions
from meshwright.errors import ProblemError
from meshwright.topology.chips import parse_chip_count
from meshwright_agent.auth import AccessSettingsError, Authenticator, check_exposure
from meshwright_agent.clock import SystemClock, read_boot_clock
from meshwright_agent.facts.model import HostFacts, parse_host_facts
from meshwright_agent.health.events import HealthMemory
from meshwright_agent.health.monitor import InventoryCheck
from meshwright_agent.health.rules import evaluate_driver
from meshwright_agent.leases import read_held
from meshwright_agent.server import load_tls
from meshwright_agent.settings import Settings, name_unknown
from meshwright_agent.supervisor.process import ChildSpec
from meshwright_agent.supervisor.specs import (
    build_device_spec,
    build_probe_spec,
    describe_holders,
    explain_not_started,
    has_accelerators,
)
from meshwright_agent.supervisor.supervisor import Supervisor

Level = Literal["ok", "note", "wrong"]
_MARKS: Final[Mapping[Level, str]] = {"ok": "ok   ", "note": "note ", "wrong": "WRONG"}


@dataclass(frozen=True)
class CheckResult:
    """The result of one check.

    Attributes:
        fix: the repair, one step per line.
        log: the last lines of a program's output, for further diagnosis.
    """

    level: Level
    subject: str
    seen: str
    fix: str = ""
    log: tuple[str, ...] = ()


def format_findings(findings: Iterable[CheckResult]) -> str:
    """Returns the findings as text: one line each, with the repair and the log below it."""
    lines: list[str] = []
    for finding in findings:
        lines.append(f"{_MARKS[finding.level]}  {finding.subject}: {finding.seen}")
        lines += [f"       → {line}" for line in finding.fix.splitlines()]
        lines += [f"         | {line}" for line in finding.log]
    return "\n".join(lines)


@dataclass(frozen=True)
class Surroundings:
    """The facts that the checks read."""

    settings: Settings
    environ: Mapping[str, str]
    versions: Mapping[str, str]
    facts: HostFacts | None = None
    facts_error: str = ""
    jax: Mapping[str, Any] | None = None
    jax_error: str = ""
    jax_log: tuple[str, ...] = field(default=())
    not_started: str = ""
    state_error: str = ""

    @property
    def gpu_count(self) -> int:
        """Number of GPUs that the driver lists."""
        return len(self.facts.gpus) if self.facts else 0

    @property
    def tpu_count(self) -> int:
        """Number of TPU chips on the PCI bus."""
        return len(self.facts.tpus) if self.facts else 0


async def gather(settings: Settings, environ: Mapping[str, str], owner: str) -> Surroundings:
    """Returns the facts about this host.

    Args:
        settings, environ: those of an agent on this host.
        owner: the agent that runs on this host, in words; empty without one. JAX is not started while it runs.
    """
    known: dict[str, Any] = {} if settings.simulate else await _look(settings, environ, owner)
    return Surroundings(
        settings=settings,
        environ=environ,
        versions={name: found for platform in COMPILERS for name, found in read_versions(platform).items()},
        state_error=_try_state_dir(settings),
        **known,
    )


async def _look(settings: Settings, environ: Mapping[str, str], owner: str) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    try:
        probe = build_probe_spec(settings, environ)
        question = {"root": str(settings.host_root)}
        seen["facts"] = parse_host_facts(await _call_once(probe, "facts", question, settings.probe_timeout_s))
    except ProblemError as error:
        seen["facts_error"] = error.detail
    if settings.cpu_devices is None and has_accelerators(settings):
        not_started = owner or explain_not_started(seen.get("facts")) or _explain_lease(settings)
        if not_started:
            return seen | {"not_started": not_started}
    try:
        worker = build_device_spec(settings, environ, stays=True)
        seen["jax"] = await _call_once(worker, "describe", {}, settings.start_timeout_s)
    except ProblemError as error:
        seen["jax_error"], seen["jax_log"] = error.detail, error.log
    return seen


async def _call_once(spec: ChildSpec, op: str, arguments: dict[str, Any], deadline_s: float) -> dict[str, Any]:
    """Returns the answer of a child like that of the agent, which ends with the call.

    Raises:
        ProblemError: the child does not start, or did not answer. The log has the reason.
    """
    child = Supervisor(spec, clock=SystemClock())
    try:
        return (await child.call(op, arguments, deadline_s=deadline_s)).result
    except ProblemError as error:
        error.log = error.log or child.log_tail
        raise
    finally:
        await child.close()


def _explain_lease(settings: Settings) -> str:
    left = read_held(settings.database_path, read_boot_clock(settings.host_root))
    if not left:
        return f"the leases in {settings.database_path} cannot be read" if left is None else ""
    lease = left[0].lease
    devices = ", ".join(str(device.local_index) for device in lease.devices)
    return f"device {devices} is leased by {lease.id} ({lease.purpose})"


def _try_state_dir(settings: Settings) -> str:
    """Returns why the state directory cannot be written or created. Creates nothing."""
    try:
        place = next(path for path in (settings.state_dir, *settings.state_dir.absolute().parents) if path.exists())
        if not place.is_dir():
            return f"{place} is not a directory"
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"x")
    except OSError as error:
        return f"{settings.state_dir} cannot be written: {error.strerror}"
    return ""


Check = Callable[[Surroundings], CheckResult | None]

LOG_LINES: Final = 8
_EXCEPTION: Final = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Interrupt|Exit)\b")
_CUDA_DRIVER_FLOORS: Final = {"jax-cuda12-plugin": 525, "jax-cuda13-plugin": 580}
"""Lowest NVIDIA driver branch. Source: JAX's installation guide, NVIDIA GPU: ≥ 525 for CUDA 12, ≥ 580 for CUDA 13."""


def _check_versions(here: Surroundings) -> CheckResult | None:
    jax, jaxlib = here.versions.get("jax"), here.versions.get("jaxlib")
    if jax is None:
        fix = "pip install 'meshwright[agent,cpu]' (or cuda12, cuda13, tpu)"
        return CheckResult("wrong", "jax", "not installed", fix)
    if jaxlib is None or jaxlib.split(".")[:2] != jax.split(".")[:2]:
        seen = f"jax {jax} with jaxlib {jaxlib}" if jaxlib else f"jax {jax} without jaxlib"
        return CheckResult("wrong", "jax", seen, f"pip install 'jaxlib=={jax}'")
    return CheckResult("ok", "jax", f"jax {jax}, jaxlib {jaxlib}")


def _check_probe(here: Surroundings) -> CheckResult | None:
    if here.facts is None:
        fix = "a driver that hangs needs the kernel log (dmesg) and usually a reboot; the agent goes on without it"
        return CheckResult("wrong", "probe", f"driver, sysfs or /proc did not answer: {here.facts_error}", fix)
    driver = evaluate_driver(here.facts)
    if here.facts.problems:
        has_files = (here.settings.host_root / "dev/nvidiactl").exists()
        is_wrong = driver.state == "unhealthy" or (driver.state == "unknown" and has_files)
        return CheckResult("wrong" if is_wrong else "note", "probe", driver.reason, driver.action)
    gpus = f"{here.gpu_count} GPU{'s' * (here.gpu_count != 1)}"
    return CheckResult("ok", "probe", f"{gpus}, {here.tpu_count} TPU chips, {here.facts.cpu.threads} CPU threads")


def _check_inventory(here: Surroundings) -> CheckResult | None:
    expected = parse_chip_count(here.settings.expect) if here.settings.expect else None
    if here.facts is None or expected is None:
        return None
    seen = InventoryCheck(HealthMemory(), expected).check(here.facts).inventory
    return CheckResult("wrong", "inventory", seen.reason, seen.action) if seen and seen.state == "unhealthy" else None


def _check_driver_library(here: Surroundings) -> CheckResult | None:
    version = here.facts.driver.version if here.facts else None
    return CheckResult("ok", "NVIDIA driver", f"version {version}") if version else None


def _check_cuda_plugin(here: Surroundings) -> CheckResult | None:
    if not here.gpu_count or here.settings.cpu_devices:
        return None
    plugins = [name for name in here.versions if name.endswith("-plugin")]
    if not plugins:
        fix = "pip install 'meshwright[cuda13]' (driver ≥ 580) or 'meshwright[cuda12]' (driver ≥ 525)"
        return CheckResult("wrong", "CUDA plugin", f"{here.gpu_count} GPUs, but JAX has no CUDA plugin", fix)
    return _check_driver_floor(here, plugins[0])


def _check_driver_floor(here: Surroundings, plugin: str) -> CheckResult:
    version = (here.facts.driver.version if here.facts else None) or ""
    branch = version.split(".")[0]
    floor = _CUDA_DRIVER_FLOORS[plugin]
    if branch.isdigit() and int(branch) < floor:
        fix = f"upgrade the driver to branch {floor} or later, or install the plugin of an older CUDA"
        return CheckResult("wrong", "CUDA plugin", f"{plugin} needs driver ≥ {floor}, this is {version}", fix)
    return CheckResult("ok", "CUDA plugin", f"{plugin} {here.versions[plugin]}")


def _check_libtpu(here: Surroundings) -> CheckResult | None:
    if not here.tpu_count or here.settings.cpu_devices:
        return None
    if "libtpu" not in here.versions:
        fix = "pip install 'meshwright[tpu]'"
        return CheckResult("wrong", "libtpu", f"{here.tpu_count} TPU chips, but libtpu is not installed", fix)
    return CheckResult("ok", "libtpu", f"libtpu {here.versions['libtpu']}")


def _check_environment(here: Surroundings) -> CheckResult | None:
    if here.settings.cpu_devices:
        return None
    return _check_platforms(here) or _check_visible_gpus(here)


def _check_platforms(here: Surroundings) -> CheckResult | None:
    value = here.environ.get("JAX_PLATFORMS", "")
    if value == "cpu" and (here.gpu_count or here.tpu_count):
        return CheckResult("wrong", "JAX_PLATFORMS", "is cpu: JAX ignores the accelerators", "unset JAX_PLATFORMS")
    if not value or here.jax is not None or here.not_started:
        return None
    fix = "unset JAX_PLATFORMS: JAX then takes what is here; or set JAX_PLATFORMS=cpu"
    return CheckResult("wrong", "JAX_PLATFORMS", f"is {value!r}, and JAX does not start so", fix)


def _check_visible_gpus(here: Surroundings) -> CheckResult | None:
    if here.gpu_count and here.environ.get("CUDA_VISIBLE_DEVICES") in {"", "-1"}:
        seen = f"is {here.environ['CUDA_VISIBLE_DEVICES']!r}, which hides every GPU"
        return CheckResult("wrong", "CUDA_VISIBLE_DEVICES", seen, "unset CUDA_VISIBLE_DEVICES")
    return None


def _find_cause(error: str, log: tuple[str, ...]) -> str:
    """Returns the last line of the exception if the log ends with one, else the error."""
    last = next((line.strip() for line in reversed(log) if line.strip()), "")
    return last if _EXCEPTION.match(last) else " ".join(error.split())


def _check_worker(here: Surroundings) -> CheckResult | None:
    if here.not_started:
        fix = "see GET /devices of a running agent; else run this again when the devices are free, or as root"
        return CheckResult("note", "device worker", f"JAX was not started: {here.not_started}", fix)
    if here.jax is None:
        fix = "fix what is WRONG above; if nothing is, run: python -c 'import jax; print(jax.devices())'"
        cause = _find_cause(here.jax_error, here.jax_log)
        return CheckResult("wrong", "device worker", f"JAX does not start: {cause}", fix, here.jax_log[-LOG_LINES:])
    count = len(here.jax["devices"])
    found = f"JAX sees {count} {here.jax['platform']} device{'s' * (count != 1)}"
    expected = f"{here.gpu_count or here.tpu_count} accelerators" if here.gpu_count or here.tpu_count else ""
    if here.facts is not None and here.facts.kfd is not None:
        expected = expected or "AMD's driver (/dev/kfd)"
    if expected and here.jax["platform"] == "cpu" and not here.settings.cpu_devices:
        fix = "see the lines above" if here.gpu_count or here.tpu_count else "install JAX's plugin for ROCm"
        return CheckResult("wrong", "device worker", f"{found}, the host has {expected}", fix)
    if here.gpu_count and here.jax["platform"] == "gpu" and len(here.jax["devices"]) != here.gpu_count:
        fix = "CUDA_VISIBLE_DEVICES or the container's device list leaves some out; that may be meant"
        return CheckResult("note", "device worker", f"{found}, the driver lists {here.gpu_count}", fix)
    return CheckResult("ok", "device worker", found)


def _check_compilers(here: Surroundings) -> CheckResult | None:
    """Reports the targets for which XLA's compiler can verify plans. A missing compiler is not a fault."""
    if "jaxlib" not in here.versions:
        return None  # the check of jax reports this
    missing = {each: reason for each in COMPILERS if (reason := explain_missing(each, here.versions))}
    if "tpu" in missing and "libtpu" in here.versions:
        words, _, line = missing["tpu"].rpartition("; ")
        return CheckResult("note", "compilers", words, line)
    there = " and ".join(each.upper() for each in COMPILERS if each not in missing)
    more = [f"for {each.upper()}: {reason.rpartition('; ')[2]}" for each, reason in missing.items()]
    return CheckResult("ok", "compilers", "; ".join((f"plans can be verified for {there} targets", *more)))


def _check_holders(here: Surroundings) -> CheckResult | None:
    holders = (here.facts.holders if here.facts else None) or ()
    if all(holder.own for holder in holders):
        return None
    fix = "benches that need the devices are refused meanwhile; stop it if it should not be there"
    return CheckResult("note", "devices", describe_holders(holders), fix)


def _check_cpu_quota(here: Surroundings) -> CheckResult | None:
    usable = here.facts.cpu.usable_threads if here.facts else None
    if usable is None or usable >= 1:
        return None
    fix = "raise the container's CPU limit; 0.2 of a core makes importing jax take about 8 s"
    return CheckResult("note", "CPU", "less than one CPU may be used", fix)


def _check_simulation(here: Surroundings) -> CheckResult | None:
    fix = "leave out --simulate (MESHWRIGHT_SIMULATE) to have this host checked"
    seen = f"the agent answers for {here.settings.simulate}: nothing of this host is looked at"
    return CheckResult("note", "simulated", seen, fix)


def _check_state(here: Surroundings) -> CheckResult | None:
    if here.state_error:
        fix = "make it writable for this user, or choose another with --state-dir or MESHWRIGHT_STATE_DIR"
        return CheckResult("wrong", "state directory", here.state_error, fix)
    return CheckResult("ok", "state directory", f"{here.settings.state_dir} is writable")


def _check_variables(here: Surroundings) -> CheckResult | None:
    unknown, fix = name_unknown(here.environ), "correct or remove it; docs/reference/settings.md has the variables"
    return CheckResult("note", "settings", f"set, but read by nothing: {unknown}", fix) if unknown else None


def _check_access(here: Surroundings) -> CheckResult:
    try:
        check_exposure(here.settings)
        Authenticator(here.settings, SystemClock())
        load_tls(here.settings)
    except AccessSettingsError as error:
        return CheckResult("wrong", "access", str(error), "the agent does not start with these settings")
    return CheckResult("ok", "access", "addresses, tokens and TLS files can be used")


CHECKS: Final[tuple[Check, ...]] = (
    _check_versions,
    _check_probe,
    _check_inventory,
    _check_driver_library,
    _check_cuda_plugin,
    _check_libtpu,
    _check_environment,
    _check_worker,
    _check_compilers,
    _check_holders,
    _check_cpu_quota,
    _check_state,
    _check_variables,
    _check_access,
)

SIMULATED_CHECKS: Final[tuple[Check, ...]] = (_check_simulation, _check_state, _check_variables, _check_access)
"""Checks for an agent that needs neither JAX nor a driver."""


def examine(settings: Settings, environ: Mapping[str, str] | None = None, *, owner: str = "") -> list[CheckResult]:
    """Returns the findings for this host, most basic first.

    Args:
        settings, environ: those of an agent on this host.
        owner: the agent that runs on this host, in words. JAX is not started while it runs.
    """
    return evaluate(asyncio.run(gather(settings, os.environ if environ is None else environ, owner)))


def evaluate(here: Surroundings) -> list[CheckResult]:
    """Returns the findings of all checks; for a simulating agent, of the checks that concern it."""
    checks = SIMULATED_CHECKS if here.settings.simulate else CHECKS
    return [finding for check in checks if (finding := check(here)) is not None]
