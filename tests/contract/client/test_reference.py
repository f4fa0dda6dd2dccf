"""Plans by reference: a file, a fingerprint, an environment variable, and what is none of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright import NotFoundError, SettingsError, load_plan
from meshwright.testing import FakeAgent
from meshwright.wire.mesh import Plan, Plans


@pytest.fixture
def fake() -> FakeAgent:
    return FakeAgent("h100:8")


@pytest.fixture
def plan(fake: FakeAgent) -> Plan:
    with fake.client() as client:
        return client.plan("dp:2,tp:4")


def _write(folder: Path, text: str) -> Path:
    file = folder / "plan.json"
    file.write_text(text)
    return file


def test_a_file_is_its_plan_or_of_several_the_first_and_the_variable_names_one_too(
    plan: Plan, fake: FakeAgent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load_plan(_write(tmp_path, plan.model_dump_json())) == plan
    with fake.client() as client:
        file = _write(tmp_path, Plans(plans=(plan, client.plan("dp:8"))).model_dump_json())
    assert load_plan(file) == plan
    monkeypatch.setenv("MESHWRIGHT_PLAN", str(file))
    assert load_plan() == plan


def test_a_fingerprint_is_asked_of_the_agent(plan: Plan, fake: FakeAgent) -> None:
    with fake.client() as client:
        assert load_plan(plan.fingerprint, client=client) == plan
        with pytest.raises(NotFoundError):
            load_plan("mw1-" + "0" * 32, client=client)


def test_a_fingerprint_without_a_client_is_asked_of_the_agent_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MESHWRIGHT_URL", "localhost")
    with pytest.raises(SettingsError, match="localhost"):
        load_plan("mw1-" + "0" * 32)


@pytest.mark.parametrize("text", ["", "{}", "[]", "not json", '{"plans": 3}', '{"fingerprint": "x"}', "\0"])
def test_a_file_without_a_plan_is_refused_with_what_a_reference_is(text: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"holds no plan.*fingerprint"):
        load_plan(_write(tmp_path, text))


def test_a_wrong_field_of_a_reply_is_named(plan: Plan, tmp_path: Path) -> None:
    text = Plans(plans=(plan,)).model_dump_json().replace('"tp":4', '"tp":"four"')
    with pytest.raises(SettingsError, match=r"holds no plan: plans\.0\.mesh_shape\.tp: Input should be a valid int"):
        load_plan(_write(tmp_path, text))


@pytest.mark.parametrize("reference", ["absent.json", ".", "mw1-short", "a\0b"])
def test_what_is_neither_file_nor_fingerprint_is_refused(reference: str) -> None:
    with pytest.raises(SettingsError, match="no file that can be read"):
        load_plan(reference)


def test_no_reference_at_all_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MESHWRIGHT_PLAN", raising=False)
    with pytest.raises(SettingsError, match="set MESHWRIGHT_PLAN"):
        load_plan()
