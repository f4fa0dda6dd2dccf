"""Plans on topologies that anybody may have written: a plan that is one, or a refusal, and soon."""

from __future__ import annotations

import copy
import json
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from meshwright.errors import ProblemError
from meshwright.planning.request import answer_request
from meshwright.topology.identity import check_plan
from meshwright.topology.model import Topology
from meshwright.topology.targets import build_target
from meshwright.wire.mesh import Plan, PlanRequest
from tests.fakes.fleets import build_host, build_slice
from tests.fakes.hosts import build_devices
from tests.fakes.topologies import build_dgx1, build_mig, build_pcie, build_tpu

Document = dict[str, Any]
Path = tuple[str | int, ...]

ANSWER_S_MAX = 2.0


def describe(topology: Topology) -> Document:
    """The topology as an agent would write it that sees all of it."""
    parts = {name: getattr(topology, name) for name in ("devices", "links", "granules")}
    reply = build_devices("cpu:1").model_copy(update={"platform": topology.platform, **parts})
    return reply.model_dump(mode="json")


WRITTEN: dict[str, list[Document]] = {
    **{name: [build_devices(name).model_dump(mode="json")] for name in ("cpu:8", "h100:8", "v5e:2x2")},
    **{
        name: [describe(build_target(name))]
        for name in ("v5p:2x2x1", "v4:4x4x8_twisted", "2*v5e:2x4", "tpu7x:2x2x1", "2*h100:4", "3*gb200:4", "v5p:4x4x4")
    },
    "dgx-1": [describe(build_dgx1())],
    "pcie": [describe(build_pcie())],
    "mig": [describe(build_mig())],
    "cores": [describe(build_tpu((2, 4), kind="TPU v3", cores=2))],
    "listed rings": [describe(build_tpu((4, 4), wrap=True))],
    "hosts": [build_host(name).model_dump(mode="json") for name in ("a", "b")],
    "slice": [host.model_dump(mode="json") for host in build_slice((2, 2, 2), (2, 2, 1))],
    "slice without shape": [
        host.model_dump(mode="json") for host in build_slice((2, 2, 2), (2, 2, 1), says_shape=False)
    ],
}

NUMBERS = [-(10**9), -5, -1, 0, 1, 2, 3, 4, 7, 8, 16, 100, 131_071, 131_072, 10**9, 2**63, 10**30, 10**400]
RATES = [*NUMBERS[3:-1], 1e-320, 1e-300, 0.5, 1e300]
TEXTS = ["", "a", "w-0", "host-0", "9" * 5000, "²", "NV²", "NV" + "9" * 400, "NV99", "ICI", "SYS", "HOST"]
SHAPES = [[], [0, 1, 1], [-1, 1, 1], [8], [4, 4], [2, 2, 1], [4, 4, 8], [40, 40, 80], [50, 50, 50], [10**4] * 3]
COORDS = [[], [0], [0, 0], [1, 1, 0], [7, 0, 0], [49, 49, 49], [131_071, 0, 0], [300] * 3, [-1, 0, 0], [10**400, 0, 0]]
CHOICES: dict[str | int, list[Any]] = {
    "shape": SHAPES, "coords": COORDS, "wrap": [[], [True], [True, False], [True] * 3, [False] * 3, [True] * 4],
    "platform": ["cpu", "gpu", "tpu"], "bandwidth_bytes_per_s": RATES,
    "observed_at": ["2026-01-02T00:00:00", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"],
}  # fmt: skip
"""What a field is changed to, by its name; others by their type."""


def list_fields(part: Any, path: Path = ()) -> Iterator[Path]:
    """Where something stands that can be changed: fields, and entries of lists."""
    entries = part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ()
    for name, value in entries:
        yield (*path, name)
        yield from list_fields(value, (*path, name))


def is_told(path: Path) -> bool:
    """Granules, devices and links say what is planned on; of many links the first stands for all."""
    return path[1:] == ("platform",) or path[1:2] in {("granules",), ("devices",)} or path[1:3] == ("links", 0)


def group_fields(documents: list[Document]) -> dict[str, list[Path]]:
    """Paths by what their field is called, so that each name is changed as often as others; entries have no name."""
    groups: dict[str, list[Path]] = defaultdict(list)
    for path in filter(is_told, list_fields(documents)):
        groups[path[-1] if isinstance(path[-1], str) else ""].append(path)
    return groups


FIELDS = {name: group_fields(documents) for name, documents in WRITTEN.items()}


def list_values(name: str | int, old: object) -> Sequence[object]:
    if name in CHOICES:
        return [*CHOICES[name], None]
    if isinstance(old, bool):
        return [not old]
    if isinstance(old, str):
        return TEXTS
    return [*NUMBERS, None] if old is None or isinstance(old, int | float) else [None]


@st.composite
def draw_documents(draw: st.DrawFn) -> list[Document]:
    name = draw(st.sampled_from(sorted(WRITTEN)))
    documents = copy.deepcopy(WRITTEN[name])
    for field in draw(st.lists(st.sampled_from(sorted(FIELDS[name])), min_size=1, max_size=3)):
        change(draw, documents, draw(st.sampled_from(FIELDS[name][field])))
    return documents


def change(draw: st.DrawFn, documents: Any, path: Path) -> None:
    """Sets a field to another value, or leaves out or doubles an entry of a list; what is gone stays as it is."""
    *way, last = path
    try:
        for step in way:
            documents = documents[step]
        old = documents[last]
    except (LookupError, TypeError):
        return
    if isinstance(documents, list):
        documents[last : last + 1] = [copy.deepcopy(old)] * draw(st.sampled_from([0, 2]))  # type: ignore[operator]
    elif isinstance(old, list) and last not in CHOICES:
        documents[last] = old[: draw(st.integers(0, len(old)))]
    else:
        documents[last] = copy.deepcopy(draw(st.sampled_from(list_values(last, old))))


ASKED = st.fixed_dictionaries(
    {"mesh": st.sampled_from(["dp:-1", "dp:2,tp:-1", "dp:2,tp:2", "dp:2", "x:1"])},
    optional={
        "allow_unused": st.booleans(),
        "devices": st.fixed_dictionaries({"count": st.sampled_from([1, 2, 3, 4, 6, 8])}),
    },
)


def answer(documents: list[Document], asked: Document) -> tuple[Plan, ...]:
    """The plans, as they come back over HTTP."""
    request = PlanRequest.model_validate_json(json.dumps({**asked, "topology": documents}))
    return tuple(Plan.model_validate_json(plan.model_dump_json()) for plan in answer_request(request).plans)


@given(documents=draw_documents(), asked=ASKED)
@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_any_topology_is_planned_or_refused_as_a_problem(documents: list[Document], asked: Document) -> None:
    start, is_whole = time.perf_counter(), True
    try:
        for plan in answer(documents, asked):
            places = [(ref.host, ref.local_index, ref.granule, ref.position) for ref in check_plan(plan)]
            assert len(set(places)) == len(places)
            event("planned")
    except ValidationError:
        event("no document")
    except ProblemError as problem:
        event(problem.code)
        is_whole = bool(problem.detail and problem.hint and problem.errors)
    assert is_whole
    assert time.perf_counter() - start < ANSWER_S_MAX


@pytest.mark.parametrize("name", WRITTEN)
def test_unchanged_they_are_planned(name: str) -> None:
    (plan,) = answer(WRITTEN[name], {"mesh": "dp:-1"})
    assert len(check_plan(plan)) == sum(len(document["devices"]) for document in WRITTEN[name])
