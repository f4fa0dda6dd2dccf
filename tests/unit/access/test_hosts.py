from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from meshwright_agent.access.hosts import HostNames, parse_allowed, parse_host, parse_origin, split_names

names = st.from_regex(r"\A[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?(\.[a-z0-9]{1,10}){0,3}\Z")
ports = st.none() | st.integers(0, 65535)


@pytest.mark.parametrize(
    ("value", "parsed"),
    [
        (b"localhost", ("localhost", "")),
        (b"LocalHost.:8790", ("localhost", "8790")),
        (b"127.0.0.1:8790", ("127.0.0.1", "8790")),
        (b"[::1]:8790", ("::1", "8790")),
        (b"[0:0:0:0:0:0:0:1]", ("::1", "")),
        (b"[::ffff:10.0.0.7]", ("10.0.0.7", "")),
        (b"node-1.rack_2.example:", ("node-1.rack_2.example", "")),
    ],
)
def test_a_host_is_a_name_or_an_address_and_a_port(value: bytes, parsed: tuple[str, str]) -> None:
    assert parse_host(value) == parsed


@pytest.mark.parametrize(
    "value",
    [b"", b".", b":80", b"::1", b"[::1", b"[evil]", b"a b", b"a/b", b"a@b", b"a,b", b"a:80:90", b"a:999999", b"a\x00b",
     b"\xc3\xa4", b"http://a", b"x" * 400, b"[fe80::1%25eth0]", b"a?b", b"a#b", b"localhost:8790 evil"],
)  # fmt: skip
def test_what_is_no_host_is_refused(value: bytes) -> None:
    assert parse_host(value) is None


@given(st.binary(max_size=310) | st.text(max_size=60).map(str.encode))
@example(b"[" + b":" * 45 + b"]")
def test_any_header_is_a_host_that_reads_the_same_again_or_none(value: bytes) -> None:
    parsed = parse_host(value)
    if parsed is not None:
        name, port = parsed
        again = f"[{name}]" if ":" in name else name
        assert parse_host(f"{again}{':' + port if port else ''}".encode()) == parsed


@given(names, ports)
def test_an_origin_is_compared_as_a_host_is(name: str, port: int | None) -> None:
    host = name if port is None else f"{name}:{port}"
    assert parse_origin(f"https://{host}".encode()) == parse_host(host.encode())


@pytest.mark.parametrize("value", [b"null", b"", b"localhost:8790", b"http://", b"http://a/b"])
def test_an_origin_that_is_none_is_nobodys(value: bytes) -> None:
    assert parse_origin(value) is None


# ---- whose name it is ------------------------------------------------------------------------------------------------


def test_the_agents_own_names_are_taken_and_others_are_not() -> None:
    hosts = HostNames(["node7", "Node7.Example."])
    assert all(hosts.takes(name, None) for name in ("localhost", "127.0.0.1", "::1", "node7", "node7.example"))
    for name in ("evil.example", "node7.example.evil", "xnode7", "10.0.0.7", "node", ""):
        assert not hosts.takes(name, "10.0.0.8")


def test_an_address_is_taken_on_a_connection_to_it() -> None:
    hosts = HostNames([])
    assert hosts.takes("10.0.0.7", "10.0.0.7")
    assert hosts.takes("10.0.0.7", "::ffff:10.0.0.7")
    assert not hosts.takes("10.0.0.7", None)


def test_a_star_takes_whole_domains_or_any_name() -> None:
    hosts = HostNames(split_names(" *.cluster.local , node"))
    assert hosts.takes("a.b.cluster.local", None)
    assert not hosts.takes("cluster.local", None)
    assert not hosts.takes("evilcluster.local", None)
    assert HostNames(["*"]).takes("anything.example", None)


@given(names)
def test_no_name_but_our_own_is_taken(name: str) -> None:
    own = {"node7", "localhost"}
    assert HostNames(["node7"]).takes(name, "10.0.0.7") == (name in own)


def test_names_that_become_known_later_are_taken_from_then_on() -> None:
    hosts = HostNames([])
    assert not hosts.takes("node7.example", None)
    hosts.add("Node7.example")
    assert hosts.takes("node7.example", None)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", ()),
        (" gw.example , *.Example.org,*", ("gw.example", "*.example.org", "*")),
        ("[fd00::1],fd00:0::2,10.0.0.7", ("fd00::1", "fd00::2", "10.0.0.7")),
    ],
)
def test_names_that_it_should_answer_to_are_taken_as_people_write_them(text: str, names: tuple[str, ...]) -> None:
    assert parse_allowed(text) == names
    assert all(HostNames(parse_allowed(text)).takes(name.removeprefix("*."), None) for name in names if "*" not in name)


@pytest.mark.parametrize(
    ("name", "works"),
    [
        ("http://gw.example:8790", "write gw.example"),
        ("gw2.example:8790", "write gw2.example"),
        ("https://[fd00::1]:8790/devices", "write fd00::1"),
        ("gw.example/", "write gw.example"),
        ("a b", "write gw.example, "),
        ("*.", "write gw.example, "),
        ("knöten.example", "write gw.example, "),
        ("*.[fd00::1]", "write fd00::1"),
    ],
)
def test_a_name_that_no_request_can_ever_mean_is_refused_with_one_that_works(name: str, works: str) -> None:
    with pytest.raises(ValueError, match="no name or address") as caught:
        parse_allowed(f"node7,{name}")
    assert works in str(caught.value)
