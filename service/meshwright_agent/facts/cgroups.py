"""Where a process belongs, from the path of its cgroup: container, Kubernetes pod, Slurm job. Pure.

Rule: the innermost container counts, since containers run in containers; what no known runtime writes is None. Knows
no file.

Source: cgroups(7); Kubernetes, pkg/kubelet/cm/cgroup_manager_linux.go (pod names of the systemd and cgroupfs drivers);
Slurm, cgroup.conf and "Control Group in Slurm" (job_<id> below slurm's or slurmstepd's own group).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_CONTAINER: Final = re.compile(r"(?:(?P<runtime>[a-z][a-z0-9-]*)[-:])?(?P<id>[0-9a-f]{64})(?:\.scope)?")
"""docker-<id>.scope, cri-containerd-<id>.scope, crio-<id>, libpod-<id>.scope, …:cri-containerd:<id>, the id alone."""
_POD: Final = re.compile(
    r"(?:(?:[a-z]+-)?kubepods(?:-[a-z]+)?-)?pod"
    r"(?P<uid>[0-9a-f]{8}(?P<sep>[-_])[0-9a-f]{4}(?:(?P=sep)[0-9a-f]{4}){2}(?P=sep)[0-9a-f]{12}|[0-9a-f]{32})"
    r"(?:\.slice)?"
)
"""pod<uid>; with systemd kubepods-burstable-pod<uid>.slice, dashes as underscores. Static pods have 32 digits alone."""
_SLURM: Final = re.compile(r"slurm(?:_.*)?|(?:.*_)?slurmstepd\.scope")
_JOB: Final = re.compile(r"job_(\d{1,20})")
_MONITOR: Final = "conmon"
"""crio-conmon-<id>.scope and libpod-conmon-<id>.scope hold the monitor of a container, which is outside of it."""


@dataclass(frozen=True)
class Placement:
    """Where a process belongs. `job`: "slurm 4711"."""

    container: str | None = None
    pod_uid: str | None = None
    job: str | None = None


def parse_cgroup(text: str) -> Placement:
    """Returns what /proc/<pid>/cgroup says: a line a hierarchy (v1), or one (v2). The first that says it counts."""
    places = [_parse_path(path) for path in _list_paths(text)]
    return Placement(
        container=next((place.container for place in places if place.container), None),
        pod_uid=next((place.pod_uid for place in places if place.pod_uid), None),
        job=next((place.job for place in places if place.job), None),
    )


def _list_paths(text: str) -> Iterator[list[str]]:
    for line in text.splitlines():
        _, _, rest = line.partition(":")
        _, colon, path = rest.partition(":")
        if colon:
            yield path.removesuffix(" (deleted)").split("/")


def _parse_path(names: list[str]) -> Placement:
    # containerd with the systemd driver but no systemd writes one name: <slice>:cri-containerd:<id>
    parts = [part for name in names for part in _split_name(name)]
    containers = [found["id"] for part in parts if (found := _match_container(part))]
    pods = [found["uid"].replace("_", "-") for part in parts if (found := _POD.fullmatch(part))]
    return Placement(containers[-1] if containers else None, pods[-1] if pods else None, _find_job(parts))


def _split_name(name: str) -> list[str]:
    before, _, rest = name.partition(":")
    return [before, rest] if rest else [name]


def _match_container(part: str) -> re.Match[str] | None:
    found = _CONTAINER.fullmatch(part)
    return None if found is None or _MONITOR in (found["runtime"] or "") else found


def _find_job(parts: list[str]) -> str | None:
    for place, part in enumerate(parts):
        if _SLURM.fullmatch(part):
            found = next((found for rest in parts[place + 1 :] if (found := _JOB.fullmatch(rest))), None)
            if found:
                return f"slurm {found[1]}"
    return None
