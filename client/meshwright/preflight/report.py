"""The report of a preflight: the verdict, and what was found on each host, in words."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal, TypeVar

from pydantic import Field

from meshwright.preflight.pairs import choose_rounds
from meshwright.wire.base import Reply
from meshwright.wire.leases import VerdictRequest, VerdictState
from meshwright.wire.preflight import Figure, PreflightResult, SlowFigure, WrongContent

HostState = Literal["ok", "fault", "missing", "unchecked"]
"""It is well · it is at fault · its agent does not answer · it could not be checked, by no fault of its own."""

_FIGURES: Final[Mapping[Figure, tuple[str, str, str]]] = {
    "matmul": ("matmul", "FLOP/s", "look at its clocks, power and temperature (GET /health), and at other work there"),
    "memory_bandwidth": ("memory bandwidth", "B/s", "look at its memory errors (GET /health), and at other work there"),
    "all_reduce": ("all-reduce over the host's devices", "B/s", "look at the links between its devices (GET /health)"),
    "network": ("network to its partners", "B/s", "look at the host's network port, cable and switch port"),
}
"""Figure → its name, its unit, what to do if it is slow."""
_PREFIXES: Final = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"))
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")
REASON_MOST: Final = 1000
_FEW: Final = {
    0: "; its figures had no peer to be compared with",
    1: "; its devices were compared with each other only",
    2: "; the network between two hosts has no peer to be compared with",
}
E = TypeVar("E", SlowFigure, WrongContent)


class HostFinding(Reply):
    """What is not well, and what to do."""

    state: HostState
    text: str
    action: str = ""


class HostReport(Reply):
    """One host."""

    address: str
    name: str
    findings: tuple[HostFinding, ...] = ()
    result: PreflightResult | None = Field(default=None, description="what it measured; null: the check did not end")

    @property
    def state(self) -> HostState:
        """The worst state of its findings; without one "ok" if it was measured, else "unchecked"."""
        order: tuple[HostState, ...] = ("fault", "missing", "unchecked")
        is_measured = self.result is not None and bool(self.result.devices)
        default: HostState = "ok" if is_measured else "unchecked"
        return next((state for state in order if any(each.state == state for each in self.findings)), default)


class PreflightReport(Reply):
    """Many hosts."""

    verdict: Literal["ok", "fault", "unknown"] = Field(
        description="ok: every host is well; fault: `culprits` are not; unknown: the check could not be made"
    )
    summary: str
    hosts: tuple[HostReport, ...]
    duration_s: float

    @property
    def culprits(self) -> tuple[HostReport, ...]:
        """The hosts that are at fault or missing."""
        return tuple(host for host in self.hosts if host.state in ("fault", "missing"))


def build_report(hosts: Sequence[HostReport], duration_s: float) -> PreflightReport:
    """Returns the report with its verdict."""
    bad = [host for host in hosts if host.state in ("fault", "missing")]
    unchecked = [host for host in hosts if host.state == "unchecked"]
    none_answers = all(host.state == "missing" for host in hosts)  # the addresses or TLS, more likely than every host
    if bad and not none_answers:
        of = f"{len(bad)} of {len(hosts)} host{'s' * (len(hosts) > 1)}"
        summary = f"{of} {'is' if len(bad) == 1 else 'are'} not well: {list_names(bad)}"
        return PreflightReport(verdict="fault", summary=summary, hosts=tuple(hosts), duration_s=duration_s)
    if unchecked or none_answers:
        count, why = (len(hosts), ": no agent answers") if none_answers else (len(unchecked), "")
        causes = [host for host in unchecked if host.findings]
        if 0 < len(causes) < len(unchecked):
            why = f", because of {list_names(causes)}"
        summary = f"{count} of {len(hosts)} host{'s' * (len(hosts) > 1)} could not be checked{why}"
        return PreflightReport(verdict="unknown", summary=summary, hosts=tuple(hosts), duration_s=duration_s)
    count = len(next(host.result.devices for host in hosts if host.result))
    what = "host is" if len(hosts) == 1 else "hosts are"
    summary = f"{len(hosts)} {what} well: {count} device{'s' if count > 1 else ''} each, checked in {duration_s:.0f} s"
    summary += _FEW.get(len(hosts) if len(hosts) * count > 1 else 0, "")
    return PreflightReport(verdict="ok", summary=summary, hosts=tuple(hosts), duration_s=duration_s)


def list_names(hosts: Sequence[HostReport]) -> str:
    """Returns the names of up to eight hosts, and how many more there are."""
    return ", ".join(host.name for host in hosts[:8]) + (f" and {len(hosts) - 8} more" if len(hosts) > 8 else "")


def build_verdict(host: HostReport, summary: str) -> VerdictRequest:
    """Returns what an agent hears. It was not missing if it does: it was restarted, or slow."""
    state: VerdictState = "unchecked" if host.state == "missing" else host.state
    found = [f"{each.text} ({each.action})" if each.action else each.text for each in host.findings]
    default = summary if state == "ok" else f"the check ended before it was measured: {summary}"
    return VerdictRequest(state=state, reason=_CONTROL.sub(" ", "; ".join(found) or default)[:REASON_MOST])


def describe_results(
    results: Mapping[int, PreflightResult], names: Sequence[str], met: Collection[int]
) -> dict[int, list[HostFinding]]:
    """Returns the findings of the hosts' common results, by the hosts' places; `met` have connected to the first."""
    found: dict[int, list[HostFinding]] = {}
    for host, texts in _describe_unreachable(results, names, met):
        found.setdefault(host, []).append(texts)
    for slow in _group(result.slow for result in results.values()):
        found.setdefault(slow[0].host, []).append(describe_slow(slow))
    for wrong in _group(result.wrong for result in results.values()):
        for host in range(len(names)) if wrong[0].host is None else (wrong[0].host,):
            found.setdefault(host, []).append(describe_wrong(wrong))
    return found


def describe_slow(figures: Sequence[SlowFigure]) -> HostFinding:
    """Returns the slow figures of a device, or of a host, in words."""
    where = "" if figures[0].device is None else f"device {figures[0].device}: "
    actions = dict.fromkeys(_FIGURES[each.figure][2] for each in figures)
    return HostFinding(state="fault", text=where + "; ".join(map(_write_figure, figures)), action="; ".join(actions))


def _write_figure(slow: SlowFigure) -> str:
    name, unit, _ = _FIGURES[slow.figure]
    return f"{name} {_write_rate(slow.value)}{unit}, peers' median {_write_rate(slow.peers)}{unit}"


def _write_rate(rate: float) -> str:
    """Returns a rate with three digits and the prefix of its unit: 1.25e10 → "12.5 G"."""
    scale, prefix = next((each for each in _PREFIXES if rate >= 0.9995 * each[0]), _PREFIXES[-1])
    return f"{rate / scale:.3g} {prefix}"


def describe_wrong(contents: Sequence[WrongContent]) -> HostFinding:
    """Returns the wrong contents of a device, or of a host, in words; if their host is not known, nobody is blamed."""
    device, most = contents[0].device, max(each.wrong_elements for each in contents)
    if contents[0].host is None:
        text = f"a sum over all devices had {most} wrong elements; which host made them is not known"
        return HostFinding(state="unchecked", text=text, action="check each of them beside other hosts")
    where = "one of its devices" if device is None else f"device {device}"
    text = f"{where} produced {most} wrong elements ({', '.join(_FIGURES[each.figure][0] for each in contents)})"
    return HostFinding(state="fault", text=text, action="take the device out of service; its results are not right")


def _describe_unreachable(
    results: Mapping[int, PreflightResult], names: Sequence[str], met: Collection[int]
) -> Iterator[tuple[int, HostFinding]]:
    """Yields of each failed connection the host that has no connection at all, or else both hosts."""
    failed = {(host, other) for host, result in results.items() for other in result.unreachable}
    if not failed:
        return
    connected = {host for other in set(met) - {0} for host in (0, other)}
    if set(met) >= set(results):  # all have met, and went on to their partners
        connected = set()
        for host, result in results.items():
            partners = {pairs[host] for pairs in choose_rounds(len(names)) if host in pairs} - set(result.unreachable)
            connected |= {host, *partners} if partners else set()
    elif not connected and len(failed) > 1:  # the first host, which several cannot reach, and not each of them
        connected = {host for host, _ in failed}
    blamed: dict[int, set[int]] = {}
    for a, b in failed:
        for host, other in ((a, b), (b, a)):
            if host not in connected or other in connected:
                blamed.setdefault(host, set()).add(other)
    for host, peers in sorted(blamed.items()):
        text = f"no TCP connection between it and {', '.join(names[peer] for peer in sorted(peers)[:4])}"
        yield host, HostFinding(state="fault", text=text, action="look at its firewall and routes: jobs use any port")


def _group(results: Iterable[Sequence[E]]) -> Iterable[list[E]]:
    """Returns each entry once, those of a host or device together, in their first order."""
    groups: dict[tuple[int | None, int | None], list[E]] = {}
    for entry in dict.fromkeys(entry for entries in results for entry in entries):
        groups.setdefault((entry.host, entry.device), []).append(entry)
    return groups.values()
