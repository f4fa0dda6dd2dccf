from __future__ import annotations

import base64
import importlib.util
import sys
from typing import Any

import pytest

from meshwright._verify.ask import Step, find_main, pack, pack_step, parse_step, speaks_of_main
from meshwright._verify.trace import StepError, load_step, watch
from meshwright.errors import InvalidRequestError
from tests.process import verify_steps

HERE = "tests.unit.verify.test_packing"


class Trainer:
    def step(self, x: float) -> float:
        return x


def test_a_closure_is_pickled_and_what_it_calls_goes_by_name() -> None:
    rate = 3
    step = pack_step(lambda x: (verify_steps.jitted, x * rate))
    assert step.kind == "pickle"
    found = load_step(step, None)
    assert found(2) == (verify_steps.jitted, 6)


def test_a_jitted_function_without_a_name_is_refused_with_a_way() -> None:
    import jax

    with pytest.raises(TypeError, match="stands in no module under a name; give what it jits"):
        pack_step(jax.jit(lambda x: x))


@pytest.mark.parametrize(("text", "kind", "where", "name"),[
    ("train:build", "module", "train", "build"), ("a.b:Trainer.step", "module", "a.b", "Trainer.step"),
    ("/x/y.py:f", "file", "/x/y.py", "f"),
])  # fmt: skip
def test_a_name_is_read(text: str, kind: str, where: str, name: str) -> None:
    assert parse_step(text) == Step.model_validate({"kind": kind, "where": where, "name": name})


@pytest.fixture
def main_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes `__main__` what `python -m pytest` makes it, also in a process that another tool has started."""
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", importlib.util.find_spec("pytest"), raising=False)


@pytest.mark.usefixtures("main_module")
def test_main_is_found_and_pickles_that_speak_of_it_are_known() -> None:
    assert find_main() == Step(kind="module", where="pytest")
    assert speaks_of_main(None, base64.b64encode(b"c__main__\nStep\n.").decode())
    assert not speaks_of_main(None, pack((1, 2), "x"))


@pytest.mark.parametrize("error", [ValueError("a\nb"), SystemExit(3), KeyError("k")])
def test_whatever_the_users_code_raises_is_told_with_its_frames(error: BaseException) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(StepError) as caught, watch("the builder failed"):
        fail()
    assert str(caught.value).startswith(f"the builder failed: {type(error).__name__}: ")
    assert "\n" not in str(caught.value)
    assert any("in fail" in line for line in caught.value.log)


@pytest.mark.parametrize(("step", "said"), [
    (Step(kind="module", where="tests.no_such", name="f"), "there is no module tests.no_such"),
    (Step(kind="module", where=HERE, name="nobody"), "has no nobody"),
    (Step(kind="module", where=HERE, name="HERE"), "is a str; a step is a function"),
    (Step(kind="file", where="/no/such.py", name="f"), "there is no file /no/such.py"),
])  # fmt: skip
def test_a_name_that_is_not_there_is_a_wrong_question(step: Step, said: str) -> None:
    with pytest.raises(InvalidRequestError, match=said):
        load_step(step, None)


@pytest.mark.parametrize("source", ["raise ValueError('broken')", "import no_such_module_at_all", "def f(:"])
def test_a_module_that_fails_is_the_users_error(source: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"trainer_{abs(hash(source))}"
    (tmp_path / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(StepError, match=f"{name} does not import"):
        load_step(Step(kind="module", where=name, name="f"), None)
