from __future__ import annotations

import copy
import json
import pickle
import shlex
import subprocess
from collections.abc import Callable
from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.environment import (
    DeviceConfiguration,
    MemoryStrategy,
    build_environment,
    build_worker_environment,
    format_exports,
)

FRACTION = "XLA_PYTHON_CLIENT_MEM_FRACTION"
NEW_FRACTION = "XLA_CLIENT_MEM_FRACTION"
PREALLOCATE = "XLA_PYTHON_CLIENT_PREALLOCATE"

names = st.from_regex(r"[A-Z_][A-Z0-9_]{0,12}", fullmatch=True)
values = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
variables = st.dictionaries(names, values, max_size=5)
flag_names = st.sampled_from(["--xla_a", "--xla_b", "--xla_c", "--xla_dump_to"])
flag_values = st.sampled_from(["", "=1", "=false", "=/tmp/x", '="two words"', "='single quoted'", r'="a \" b"'])
flags = st.lists(st.tuples(flag_names, flag_values), max_size=4)
configurations = st.builds(
    DeviceConfiguration, st.sampled_from([s for s in MemoryStrategy if s is not MemoryStrategy.CUSTOM]),
    st.none() | st.floats(0, 1, exclude_min=True), st.booleans(), st.booleans(),
)  # fmt: skip


def write_flags(pairs: list[tuple[str, str]]) -> str:
    return "  ".join(name + value for name, value in pairs)


@pytest.mark.parametrize("own", [{}, {FRACTION: "0.3"}, {NEW_FRACTION: "0.3"}])
def test_on_tpus_a_memory_fraction_is_only_the_callers_own(own: dict[str, str]) -> None:
    config = DeviceConfiguration(MemoryStrategy.AGGRESSIVE, environment_variables=own)
    assert build_environment(config, {}, platform="tpu") == own
    assert build_environment(config, {}, platform="gpu") == (own or {FRACTION: "0.9"})


@pytest.mark.parametrize("fraction", [0, -0.1, 1.0001, float("nan"), float("inf"), True, "0.5"])
def test_a_fraction_outside_0_to_1_is_refused(fraction: float) -> None:
    with pytest.raises(ValueError, match=r"memory_fraction is .*\(0, 1\]"):
        DeviceConfiguration(memory_fraction=fraction)


@given(st.floats(0, 1, exclude_min=True))
def test_every_fraction_in_range_survives_the_way_through_the_environment(fraction: float) -> None:
    built = build_environment(DeviceConfiguration(MemoryStrategy.CUSTOM, fraction), {})
    assert float(built[FRACTION]) == fraction


@pytest.mark.parametrize(("field", "value"), [
    ("memory_strategy", "greedy"), ("memory_fraction", 2), ("enable_x64", "false"), ("enable_jit", 1),
    ("platform_priority", "gpu"), ("platform_priority", 5), ("platform_priority", [1]), ("environment_variables", None),
    ("memory_fraction", "0.5"), ("environment_variables", {"NOT A NAME": "1"}), ("environment_variables", {"": "1"}),
    ("environment_variables", {"LEVEL": 3}), ("environment_variables", {"LEVEL": "a\0b"}),
    ("environment_variables", {"XLA_FLAGS": "--xla_a=1 stray --xla_b=2"}),
    ("environment_variables", {"XLA_FLAGS": "/etc/flags"}),
])  # fmt: skip
def test_a_wrong_value_is_refused_when_made_and_when_set_later(field: str, value: object) -> None:
    with pytest.raises(ValueError):
        DeviceConfiguration(**{field: value})  # type: ignore[arg-type]
    config = DeviceConfiguration()
    setattr(config, field, value)
    with pytest.raises(ValueError):
        build_environment(config, {})


COPIES: list[Callable[[DeviceConfiguration], DeviceConfiguration]] = [
    lambda config: config, copy.copy, copy.deepcopy, replace, lambda config: DeviceConfiguration(**asdict(config)),
    lambda config: pickle.loads(pickle.dumps(config)),
]  # fmt: skip


@pytest.mark.parametrize("take", COPIES)
def test_a_fraction_that_was_not_given_reads_as_the_strategys_and_follows_it_in_copies(
    take: Callable[[DeviceConfiguration], DeviceConfiguration],
) -> None:
    config = take(DeviceConfiguration())
    assert config.memory_fraction == asdict(config)["memory_fraction"] == 0.75
    assert json.loads(json.dumps(config.memory_fraction)) == 0.75
    assert "memory_fraction=0.75" in repr(config)
    assert config == DeviceConfiguration()
    assert replace(config, memory_strategy=MemoryStrategy.AGGRESSIVE).memory_fraction == 0.90
    config.memory_strategy = "conservative"  # type: ignore[assignment]
    assert config.memory_fraction == config.resolve_memory_fraction() == 0.60
    with pytest.raises(ValueError, match="memory_fraction is None"):
        replace(config, memory_strategy=MemoryStrategy.CUSTOM)


def test_a_configuration_without_a_fraction_can_be_printed() -> None:
    config = DeviceConfiguration()
    for strategy in (MemoryStrategy.CUSTOM, "greedy"):
        config.memory_strategy = strategy  # type: ignore[assignment]
        assert "memory_fraction=None" in repr(config)
        with pytest.raises(ValueError):
            config.check()


@given(configurations, variables)
def test_the_callers_own_variables_win(config: DeviceConfiguration, own: dict[str, str]) -> None:
    config.environment_variables = own
    built = build_environment(config, {})
    assert {name: built[name] for name in own} == own


@given(configurations, variables)
def test_building_changes_neither_the_base_nor_the_configuration(
    config: DeviceConfiguration, base: dict[str, str]
) -> None:
    config.environment_variables = {"XLA_FLAGS": "--xla_a=1"}
    before = dict(base)
    build_environment(config, base)
    assert base == before
    assert config.environment_variables == {"XLA_FLAGS": "--xla_a=1"}


@given(flags, flags)
def test_merging_keeps_every_flag_and_the_own_values(base: list[tuple[str, str]], own: list[tuple[str, str]]) -> None:
    config = DeviceConfiguration(environment_variables={"XLA_FLAGS": write_flags(own)})
    merged = build_environment(config, {"XLA_FLAGS": write_flags(base)})["XLA_FLAGS"]
    pieces = shlex.split(merged)
    expected = [f"{name}{value}" for name, value in base if name not in dict(own)]
    expected += [f"{name}{value}" for name, value in own]
    assert pieces == shlex.split(" ".join(expected))


@given(configurations, flags, flags)
def test_building_again_on_top_of_the_result_changes_nothing(
    config: DeviceConfiguration, base: list[tuple[str, str]], own: list[tuple[str, str]]
) -> None:
    config.environment_variables = {"XLA_FLAGS": write_flags(own)}
    environment = {"XLA_FLAGS": write_flags(base)}
    once = environment | build_environment(config, environment)
    assert once | build_environment(config, once) == once


def test_flags_in_a_file_cannot_be_merged_and_are_not_dropped_silently() -> None:
    config = DeviceConfiguration(environment_variables={"XLA_FLAGS": "--xla_a=1"})
    with pytest.raises(ValueError, match=r"file 'my\.flags'"):
        build_environment(config, {"XLA_FLAGS": "my.flags"})
    assert "XLA_FLAGS" not in build_environment(DeviceConfiguration(), {"XLA_FLAGS": "my.flags"})


@pytest.mark.parametrize("base", [{}, {FRACTION: "0.4"}, {NEW_FRACTION: "0.5"}, {NEW_FRACTION: "0.5", FRACTION: "0.4"}])
@pytest.mark.parametrize(("own", "fraction"), [
    ({}, "0.75"), ({FRACTION: "0.3"}, "0.3"), ({NEW_FRACTION: "0.2"}, "0.2"),
    ({NEW_FRACTION: "0.2", FRACTION: "0.3"}, "0.2"),
])  # fmt: skip
def test_jax_sees_one_name_for_the_memory_fraction_and_the_callers_own_wins(
    base: dict[str, str], own: dict[str, str], fraction: str
) -> None:
    environment = base | build_environment(DeviceConfiguration(environment_variables=own), base)
    assert [environment[name] for name in (FRACTION, NEW_FRACTION) if environment.get(name)] == [fraction]


def test_a_worker_takes_memory_as_needed_unless_told_otherwise() -> None:
    own = DeviceConfiguration(environment_variables={PREALLOCATE: "true"})
    assert build_worker_environment(DeviceConfiguration(), {})[PREALLOCATE] == "false"
    assert build_worker_environment(DeviceConfiguration(), {PREALLOCATE: "true"})[PREALLOCATE] == "true"
    assert build_worker_environment(own, {PREALLOCATE: "false"})[PREALLOCATE] == "true"


@given(configurations, variables)
def test_a_worker_inherits_everything(config: DeviceConfiguration, base: dict[str, str]) -> None:
    built = build_worker_environment(config, base)
    changed = build_environment(config, base)
    kept = {name: value for name, value in base.items() if name not in changed}
    assert kept.items() <= built.items()
    assert changed.items() <= built.items()


@pytest.mark.parametrize(
    ("platform", "variable"), [("cpu", "cpu"), ("tpu", "tpu"), ("gpu", "cuda"), ("rocm,cpu", "rocm,cpu")]
)
def test_the_workers_platform_is_named_as_jax_names_it(platform: str, variable: str) -> None:
    built = build_worker_environment(DeviceConfiguration(), {"JAX_PLATFORMS": "other"}, platform=platform)
    assert built["JAX_PLATFORMS"] == variable


def test_a_worker_measures_compiled_programs_in_32_bits_whatever_the_agent_was_started_with() -> None:
    base = {"JAX_ENABLE_X64": "1", "JAX_DISABLE_JIT": "1"}
    built = build_worker_environment(DeviceConfiguration(), base)
    assert (built["JAX_ENABLE_X64"], built["JAX_DISABLE_JIT"]) == ("false", "false")
    assert build_worker_environment(DeviceConfiguration(enable_x64=True), {})["JAX_ENABLE_X64"] == "true"


def test_a_worker_needs_at_least_one_cpu_device() -> None:
    built = build_worker_environment(DeviceConfiguration(), {"JAX_NUM_CPU_DEVICES": "3"}, cpu_devices=8)
    assert built["JAX_NUM_CPU_DEVICES"] == "8"
    with pytest.raises(ValueError, match="cpu_devices is 0"):
        build_worker_environment(DeviceConfiguration(), {}, cpu_devices=0)


def test_a_shell_reads_the_exports_back_as_they_were() -> None:
    nasty = {"A": "", "B": "two words", "C": 'it\'s $HOME `x` "y" \\', "D": "line\nline", "E": "é*?;&|#"}
    script = "\n".join([*format_exports(nasty), 'printf "%s\\0" "$A" "$B" "$C" "$D" "$E"'])
    done = subprocess.run(["/bin/sh", "-c", script], capture_output=True, check=True, env={}, timeout=30)
    assert done.stdout.decode().split("\0")[:-1] == list(nasty.values())


@pytest.mark.parametrize("name", ["A;rm -rf x", "1A", "A B", "", "A=B", "Ä"])
def test_a_name_that_could_be_read_as_shell_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="no environment variable"):
        format_exports({name: "1"})
