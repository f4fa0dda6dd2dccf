"""Keys of a node's labels; what is allowed is read back by a parser that holds node-feature-discovery's own rules."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from meshwright_agent.label_keys import NAMES, parse_label_keys, resolve_keys, verify_key
from meshwright_agent.labels import Sighting, build_labels, format_labels
from meshwright_agent.settings import Settings
from tests.fakes.machines import NAMES as MACHINES
from tests.fakes.machines import NOW
from tests.fakes.node_labels import FeatureFileError, read_feature_file
from tests.unit.test_labels import LATER, look

PREFIX = Settings().label_prefix


def read_labels(keys: str, prefix: str = PREFIX) -> dict[str, str]:
    found = resolve_keys(prefix, keys)
    return read_feature_file(format_labels(found, dict.fromkeys(NAMES, "x"), LATER), now=NOW)


def test_every_label_has_a_key_of_its_own_below_the_prefix() -> None:
    assert set(read_labels("", "example.org")) == {f"example.org/{name}" for name in NAMES}


@pytest.mark.parametrize("machine", MACHINES)
def test_every_label_that_a_host_gets_can_be_named(tmp_path: Path, machine: str) -> None:
    sighting = look(tmp_path, machine)
    assert set(build_labels(Sighting(sighting.devices, sighting.health))) <= set(NAMES)


def test_one_label_gets_another_key_and_another_none() -> None:
    found = set(read_labels("device-count=example.com/gpu-count, health=, platform=kind"))
    assert {"example.com/gpu-count", f"{PREFIX}/kind"} <= found
    assert not {f"{PREFIX}/{name}" for name in ("device-count", "health", "platform")} & found
    assert len(found) == len(NAMES) - 1


def test_all_labels_can_be_left_out() -> None:
    assert read_labels(",".join(f"{name}=" for name in NAMES)) == {}


def test_labels_may_change_places() -> None:
    found = resolve_keys(PREFIX, "health=platform,platform=health")
    assert (found["health"], found["platform"]) == (f"{PREFIX}/platform", f"{PREFIX}/health")


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ("devices=example.com/gpus", "no label 'devices'; the labels are platform, device-count"),
        ("health", "has no =; name=key gives"),
        ("health=a.example.org/h,health=", "health has two keys"),
        ("health=device-count", "device-count and health have one key"),
        ("health=example.com/x,platform=example.com/x", "platform and health have one key, example.com/x"),
        ("health=/x", "before the slash"),
        ("health=Example.com/x", "before the slash"),
        ("health=example.com/", "after one slash"),
        ("health=example.com/a/b", "after one slash"),
        ("health=-x", "after one slash"),
        ("health=" + "x" * 64, "after one slash"),
        ("health=node.kubernetes.io/health", "belongs to Kubernetes"),
        ("health=kubernetes.io/health", "belongs to Kubernetes"),
    ],
)
def test_a_key_that_would_not_reach_the_node_is_refused_at_start(keys: str, words: str) -> None:
    with pytest.raises(ValueError, match=words) as refusal:
        Settings(label_keys=keys)
    assert "label_keys" in str(refusal.value)


def test_a_domain_that_only_ends_like_kubernetes_is_somebodys_own() -> None:
    assert read_labels("health=feature.node.kubernetes.io/health,platform=sub.profile.node.kubernetes.io/p")
    verify_key("notk8s.io/health")


@given(st.text(max_size=80))
def test_any_text_is_refused_or_makes_keys_that_arrive(text: str) -> None:
    try:
        found = resolve_keys(PREFIX, text)
    except ValueError:
        return
    try:
        labels = read_feature_file(format_labels(found, dict.fromkeys(NAMES, "x"), LATER), now=NOW)
    except FeatureFileError as error:
        raise AssertionError(f"{text!r} was taken") from error
    assert set(labels) == set(found.values())


@given(st.dictionaries(st.sampled_from(NAMES), st.from_regex(r"[a-z]{1,9}[.]example/[a-z]{1,9}|", fullmatch=True)))
def test_what_is_written_is_read_again(keys: dict[str, str]) -> None:
    assert parse_label_keys(",".join(f"{name}={key}" for name, key in keys.items())) == keys
    chosen = [key for key in keys.values() if key]
    assume(len(chosen) == len(set(chosen)))
    found = resolve_keys(PREFIX, ",".join(f"{name}={key}" for name, key in keys.items()))
    assert all(found.get(name) == (key or None) for name, key in keys.items())


def test_what_is_simulated_gets_no_labels_and_the_agent_says_so_at_start(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="stands beside simulate"):
        Settings(simulate="8*h100:8", label_file=tmp_path / "labels")
