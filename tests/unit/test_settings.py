from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

from meshwright_agent.cli import app
from meshwright_agent.settings import DEFAULT_PORT, Settings, name_unknown

NUMBERS = [name for name, field in Settings.model_fields.items() if field.metadata and field.annotation is not str]
FLAGS = {"host", "port", "uds", "cpu_devices", "simulate", "state_dir"} | {
    "memory_strategy", "idle_release_s", "log_level", "tokens_file", "insecure", "tls_cert_file", "tls_key_file",
    "tls_client_ca_file",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith(("MESHWRIGHT_", "XDG_", "STATE_DIRECTORY")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))


# ---- where values come from -----------------------------------------------------------------------------------------


def test_without_anything_said_the_agent_is_on_loopback_only() -> None:
    settings = Settings()
    assert (settings.host, settings.port, settings.uds) == ("127.0.0.1", DEFAULT_PORT, None)


@pytest.mark.parametrize(("name", "text", "value"), [
    ("PORT", "0", 0), ("CPU_DEVICES", "8", 8), ("IDLE_RELEASE_S", "0.5", 0.5),
    ("MEMORY_STRATEGY", "aggressive", "aggressive"), ("UDS", "/run/agent.sock", Path("/run/agent.sock")),
    ("HOST", "", ""), ("UDS", "", None), ("SIMULATE", "64*H100:8", "64*h100:8"),
    ("SIMULATE", "v5p-8", "v5p:2x2x1"), ("SIMULATE", "", None), ("COMPILE_TIMEOUT_S", "2.5", 2.5),
])  # fmt: skip
def test_each_setting_is_also_an_environment_variable(
    monkeypatch: pytest.MonkeyPatch, name: str, text: str, value: Any
) -> None:
    monkeypatch.setenv(f"MESHWRIGHT_{name}", text)
    assert getattr(Settings(), name.lower()) == value


def test_a_variable_that_nothing_reads_is_named_with_the_nearest_one() -> None:
    page = (Path(__file__).parents[2] / "docs/reference/client.md").read_text()
    assert name_unknown([*re.findall(r"(?m)^\| `(MESHWRIGHT_\w+)` \|", page), "MESHWRIGHT_PORT", "HOME"]) == ""
    assert name_unknown(["MESHWRIGHT_X", "MESHWRIGHT_EXPCT"]) == "MESHWRIGHT_EXPCT (MESHWRIGHT_EXPECT?), MESHWRIGHT_X"


# ---- folders --------------------------------------------------------------------------------------------------------


def test_paths_are_absolute_whatever_the_current_folder_becomes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = Settings(state_dir=Path("state"), uds=Path("~/agent.sock"))
    assert settings.state_dir == tmp_path / "state"
    assert settings.uds == tmp_path / "agent.sock"


@pytest.mark.parametrize("name", ["state_dir", "host_root"])
def test_an_empty_path_is_not_the_current_folder(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(f"MESHWRIGHT_{name.upper()}", "")
    with pytest.raises(ValidationError, match="is empty"):
        Settings()


# ---- bounds ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", ["-1", "nan", "inf", "-inf", "1e999", "many", ""])
def test_a_number_that_makes_no_sense_is_refused_with_the_settings_name(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(f"MESHWRIGHT_{name.upper()}", value)
    with pytest.raises(ValidationError) as caught:
        Settings()
    assert [error["loc"] for error in caught.value.errors()] == [(name,)]


def test_nothing_seen_in_time_is_stale_before_the_next_probes_have_failed() -> None:
    assert Settings().stale_after_s == 120
    assert Settings(probe_interval_s=5, probe_timeout_s=60).stale_after_s == 195


def test_every_setting_says_what_it_is_and_every_number_is_bounded() -> None:
    for name, field in Settings.model_fields.items():
        assert field.description, name
        if field.annotation in (int, float):
            assert field.metadata, name


def test_names_of_numbers_carry_their_unit() -> None:
    for name, field in Settings.model_fields.items():
        if field.annotation is float:
            assert name.endswith(("_s", "_days")), name


# ---- the command line -----------------------------------------------------------------------------------------------


def test_a_variable_without_a_flag_is_named_alone() -> None:
    wrong = {"MESHWRIGHT_PROBE_TIMEOUT_S": "0", "MESHWRIGHT_START_TIMEOUT_S": "x"}
    result = CliRunner().invoke(app, ["serve"], env=wrong)
    assert result.exit_code == 2
    lines = result.stderr.splitlines()
    assert [re.split(":| ", line)[0] for line in lines] == ["MESHWRIGHT_START_TIMEOUT_S", "MESHWRIGHT_PROBE_TIMEOUT_S"]


def test_every_flag_of_serve_is_a_setting() -> None:
    help_text = CliRunner().invoke(app, ["serve", "--help"]).stdout
    flags = {flag.replace("-", "_") for flag in re.findall(r"--([a-z-]+)", help_text)} - {"help"}
    assert flags == FLAGS
    assert set(Settings.model_fields) >= FLAGS
