"""A scripted agent for flows: what each step answers, and a clock that only steps move."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import BaseModel

from meshwright._calls.flows import Flow, Link, Open, Pause, ReadChunk, Send, Step
from meshwright._calls.messages import Answer, Failure, Outcome
from meshwright._calls.outcomes import RetryPolicy
from meshwright.errors import ProblemError
from meshwright.wire.problem import build_problem

T = TypeVar("T")
STREAM = Answer(200, {"content-type": "text/event-stream; charset=utf-8"})


def refuse(error: ProblemError) -> Answer:
    return Answer(error.status, {}, build_problem(error).model_dump_json().encode())


def say(reply: BaseModel) -> Answer:
    return Answer(200, {}, reply.model_dump_json().encode())


@dataclass
class Script:
    """An agent that answers from lists, and a clock that moves as long as its steps take."""

    sends: list[Outcome | BaseException] = field(default_factory=list)
    streams: list[list[Any]] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    now_s: float = 0.0
    ping_s: float | None = None  # set: streams never end, and say "I live" so often

    def link(self, max_retries: int = 2) -> Link:
        return Link("http://a", RetryPolicy(max_retries, jitter=lambda: 0.0), clock=lambda: self.now_s)

    def run(self, flow: Flow[T]) -> T:
        chunks: list[Any] = []
        outcome: Any = None
        interruption: BaseException | None = None
        while True:
            try:
                step = flow.throw(interruption) if interruption else flow.send(outcome)
            except StopIteration as stop:
                value: T = stop.value
                return value
            self.steps.append(step)
            interruption = None
            match step:
                case Send():
                    outcome = self.sends.pop(0)
                case Pause(delay_s):
                    self.now_s += delay_s
                    outcome = None
                case Open():
                    chunks = list(self.streams.pop(0)) if self.streams else []
                    outcome = chunks.pop(0) if chunks and isinstance(chunks[0], Answer) else STREAM
                case ReadChunk():
                    outcome = self._read(chunks)
            if isinstance(outcome, BaseException):
                interruption, outcome = outcome, None

    def _read(self, chunks: list[Any]) -> Any:
        window_s = next(step.silence_s for step in reversed(self.steps) if isinstance(step, Open))
        if self.ping_s is not None:
            self.now_s += min(window_s, self.ping_s)
            return b": sign of life\n\n" if self.ping_s < window_s else Failure("timeout", "silence")
        outcome = chunks.pop(0) if chunks else None
        self.now_s += window_s if isinstance(outcome, Failure) and outcome.kind == "timeout" else 0.0
        return outcome

    def sent(self, kind: type[Step]) -> list[Any]:
        return [step for step in self.steps if isinstance(step, kind)]

    @property
    def pauses_s(self) -> list[float]:
        return [step.delay_s for step in self.sent(Pause)]
