"""Fake agents with a history of health, with benches that end as a test says, and with a compiler that reports so."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import httpx

from meshwright.errors import ProblemError
from meshwright.testing import FakeAgent
from meshwright.wire.batch_size import BatchSize, CompiledBatch
from meshwright.wire.health import Component, EventKind, HealthEvent, HealthEvents, State
from meshwright.wire.mesh import PlanRequest, Plans
from meshwright.wire.problem import build_problem
from meshwright.wire.runs import Progress, Run
from meshwright.wire.verification import Verification
from tests.fakes.stored import build_run

VERIFIED = Verification(status="verified", peak_memory_bytes=10 * 2**30, capacity_bytes=15 * 2**30)


class RemembersHealth(FakeAgent):
    """A fake whose changes of health are events."""

    def __init__(self, hardware: str = "cpu:2") -> None:
        super().__init__(hardware)
        self.events: list[HealthEvent] = []
        self.answer("GET", "/events", self._list)
        self.answer("GET", "/events/stream", self._stream)

    def change_health(
        self, name: str, state: State, reason: str = "", *, kind: EventKind = "state", **fields: Any
    ) -> Component:
        before = {part.name: part.state for part in self.health.components}
        component = super().change_health(name, state, reason, **fields)
        event = {"seq": len(self.events) + 1, "at": datetime.now(UTC), "component": component.name, "kind": kind}
        told = {"state": state, "before": before.get(component.name), "reason": reason, **fields}
        self.events.append(HealthEvent.model_validate(event | told))
        return component

    def _list(self, request: httpx.Request) -> HealthEvents:
        asked = request.url.params
        since = datetime.fromisoformat(asked["since"]) if "since" in asked else None
        found = [
            event
            for event in self.events[int(asked.get("after", "0")) :]
            if asked.get("component") in (None, event.component) and (since is None or event.at >= since)
        ]
        limit = int(asked.get("limit", "100"))
        chosen = found[:limit] if "after" in asked else found[-limit:]
        return HealthEvents(events=tuple(chosen), last_seq=len(self.events))

    def _stream(self, request: httpx.Request) -> httpx.Response:
        after = int(request.headers.get("last-event-id") or request.url.params.get("after") or len(self.events))
        frames = (f"id: {event.seq}\ndata: {event.model_dump_json()}\n\n" for event in self.events[after:])
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, content="".join(frames))


def end_run(outcome: Any, **fields: Any) -> Run:
    """Returns a run that ended with this result or error; None: one that is still running."""
    match outcome:
        case None:
            return build_run(state="running", **fields)
        case ProblemError():
            state = "cancelled" if outcome.code == "run_cancelled" else "failed"
            return build_run(state=state, error=build_problem(outcome), **fields)
        case _:
            return build_run(state="succeeded", result=outcome.model_dump(mode="json"), **fields)


def compile_with(fake: FakeAgent, outcome: Verification | ProblemError | None = VERIFIED) -> None:
    """Makes the fake answer compiles by a run with this report or error; None: by a run that does not end."""

    def plan(request: httpx.Request) -> httpx.Response | Run:
        asked = PlanRequest.model_validate_json(request.content)
        body = asked.model_copy(update={"compile": False}).model_dump_json(exclude_unset=True)
        reply = FakeAgent(fake.devices).transport().handle_request(httpx.Request("POST", request.url, content=body))
        if not asked.compile or reply.status_code != 200:
            return reply
        found = Plans.model_validate_json(reply.content)
        if not isinstance(outcome, Verification):
            return end_run(outcome, kind="plan")
        plans = tuple(plan.model_copy(update={"verification": outcome}) for plan in found.plans)
        progress = Progress(done=1, total=1, message="compiled")
        return end_run(found.model_copy(update={"plans": plans}), kind="plan", progress=progress)

    def fit(request: httpx.Request) -> BatchSize | Run:
        if not isinstance(outcome, Verification):
            return end_run(outcome, kind="batch_size")
        with FakeAgent(fake.devices).client() as client:
            advice = client.batch_size("h100")
        count = len(fake.devices.devices)
        fields: dict[str, Any] = {"per_replica_batch_size": None, "global_batch_size": None, "limit": None}
        if outcome.status == "verified":
            fields = {"per_replica_batch_size": 8, "global_batch_size": 8 * count, "limit": "memory"}
        compiled = CompiledBatch(verification=outcome, **fields)
        return end_run(advice.model_copy(update={"compiled": compiled}), kind="batch_size")

    fake.answer("POST", "/mesh/plan", plan)
    fake.answer("POST", "/batch-size", fit)
