"""What Pod Security refuses in a pod, profile by profile, for pods of Linux.

Rule: a line of the standard is a function that names the fields which break it; a profile is the lines it asks for.
Left out are fields that no file here sets: SELinux types, procMount, sysctls, hosts of probes, Windows. Knows no chart.

Source: kubernetes.io, "Pod Security Standards", as of Kubernetes 1.34.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Literal

Profile = Literal["privileged", "baseline", "restricted"]
Spec = dict[str, Any]

RESTRICTED_VOLUMES: Final = frozenset(
    ("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret")
)
BASELINE_CAPABILITIES: Final = frozenset(
    (
        *("AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE"),
        *("SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"),
    )
)
SECCOMP: Final = ("RuntimeDefault", "Localhost")


def list_refused(spec: Spec, profile: Profile) -> list[str]:
    """Returns the fields for which a pod is refused under a profile; [] if it is let in."""
    asked = {"privileged": (), "baseline": BASELINE, "restricted": (*BASELINE, *RESTRICTED)}[profile]
    return [field for find in asked for field in find(spec)]


def _list_containers(spec: Spec) -> Iterator[tuple[str, Spec, Spec]]:
    """Yields the name, the container and its security context, of every kind of container."""
    for kind in ("initContainers", "containers", "ephemeralContainers"):
        for container in spec.get(kind, ()):
            yield f"{kind}[{container['name']}]", container, container.get("securityContext", {})


def _find_host_namespaces(spec: Spec) -> Iterable[str]:
    return [name for name in ("hostNetwork", "hostPID", "hostIPC") if spec.get(name)]


def _find_host_paths(spec: Spec) -> Iterable[str]:
    return [f"volumes[{volume['name']}].hostPath" for volume in spec.get("volumes", ()) if "hostPath" in volume]


def _find_host_ports(spec: Spec) -> Iterable[str]:
    each = ((name, port) for name, container, _ in _list_containers(spec) for port in container.get("ports", ()))
    return [f"{name}.hostPort" for name, port in each if port.get("hostPort")]


def _find_privileged(spec: Spec) -> Iterable[str]:
    return [f"{name}.privileged" for name, _, context in _list_containers(spec) if context.get("privileged")]


def _find_added_capabilities(spec: Spec) -> Iterable[str]:
    return _find_added(spec, BASELINE_CAPABILITIES)


def _find_unconfined(spec: Spec) -> Iterable[str]:
    contexts = [("pod", spec.get("securityContext", {})), *((name, own) for name, _, own in _list_containers(spec))]
    return [
        f"{name}.{field}"
        for name, context in contexts
        for field in ("seccompProfile", "appArmorProfile")
        if context.get(field, {}).get("type") == "Unconfined"
    ]


def _find_volumes(spec: Spec) -> Iterable[str]:
    kinds = ((volume["name"], set(volume) - {"name"}) for volume in spec.get("volumes", ()))
    return [f"volumes[{name}]: {', '.join(kind)}" for name, kind in kinds if not kind <= RESTRICTED_VOLUMES]


def _find_escalation(spec: Spec) -> Iterable[str]:
    every = _list_containers(spec)
    return [f"{name}.allowPrivilegeEscalation" for name, _, own in every if own.get("allowPrivilegeEscalation", True)]


def _find_root(spec: Spec) -> Iterable[str]:
    pod = spec.get("securityContext", {})
    for name, _, own in _list_containers(spec):
        merged = {**pod, **own}
        if merged.get("runAsNonRoot") is not True:
            yield f"{name}.runAsNonRoot"
        if merged.get("runAsUser") == 0:
            yield f"{name}.runAsUser"


def _find_without_seccomp(spec: Spec) -> Iterable[str]:
    pod = spec.get("securityContext", {})
    for name, _, own in _list_containers(spec):
        if {**pod, **own}.get("seccompProfile", {}).get("type") not in SECCOMP:
            yield f"{name}.seccompProfile"


def _find_kept_capabilities(spec: Spec) -> Iterable[str]:
    kept = [name for name, _, own in _list_containers(spec) if "ALL" not in own.get("capabilities", {}).get("drop", ())]
    return [*(f"{name}.capabilities.drop" for name in kept), *_find_added(spec, frozenset(("NET_BIND_SERVICE",)))]


def _find_added(spec: Spec, allowed: frozenset[str]) -> list[str]:
    return [
        f"{name}.capabilities.add"
        for name, _, own in _list_containers(spec)
        if not set(own.get("capabilities", {}).get("add", ())) <= allowed
    ]


_Line = Callable[[Spec], Iterable[str]]
BASELINE: Final[tuple[_Line, ...]] = (
    _find_host_namespaces,
    _find_host_paths,
    _find_host_ports,
    _find_privileged,
    _find_added_capabilities,
    _find_unconfined,
)
RESTRICTED: Final[tuple[_Line, ...]] = (
    _find_volumes,
    _find_escalation,
    _find_root,
    _find_without_seccomp,
    _find_kept_capabilities,
)
