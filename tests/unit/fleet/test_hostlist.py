from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright._fleet.hostlist import MAX_HOSTS, parse_hostlist, split_entries
from meshwright.errors import SettingsError


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("", ""),
        ("node7", "node7"),
        ("node[1-3]", "node1 node2 node3"),
        ("node[01-03,10],gpu3", "node01 node02 node03 node10 gpu3"),
        ("node[08-11]", "node08 node09 node10 node11"),
        ("node[098-101]", "node098 node099 node100 node101"),
        ("n[0-1]", "n0 n1"),
        ("n[00]", "n00"),
        ("n[5]", "n5"),
        ("rack[0-1]_blade[8-10]", "rack0_blade8 rack0_blade9 rack0_blade10 rack1_blade8 rack1_blade9 rack1_blade10"),
        ("a[1-2]-ib,b", "a1-ib a2-ib b"),
        ("a[1-2]:9000", "a1:9000 a2:9000"),
        ("[1-2]", "1 2"),
        ("a, b\tc\n[1,3]", "a b c 1 3"),
        ("a[1, 3]", "a1 a3"),
        ("a,,b,", "a b"),
        ("n[1,1,2]", "n1 n1 n2"),
        ("n[1-1]", "n1"),
    ],
)
def test_a_hostlist_is_read_as_slurm_writes_it(text: str, hosts: str) -> None:
    assert parse_hostlist(text) == tuple(hosts.split())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("node[1-", "opens or closes nothing"),
        ("node1]", "opens or closes nothing"),
        ("node[[1]]", "opens or closes nothing"),
        ("node[]", "is a number or a range"),
        ("node[a-c]", "is a number or a range"),
        ("node[1-2-3]", "is a number or a range"),
        ("node[-3]", "is a number or a range"),
        ("node[1,]", "is a number or a range"),
        ("node[٣]", "is a number or a range"),
        ("node[3-1]", "write 1-3"),
        ("node[0-65536]", "65537 hosts; a list may name 65536"),
        ("a[0-999999999],b", "1000000000 hosts"),
        ("a[0-40000],b[0-40000]", "names 40001 hosts"),
        ("r[0-999]_n[0-999]_c[0-999]", "1000000000 hosts"),
    ],
)
def test_what_is_none_is_refused_with_an_example(text: str, words: str) -> None:
    with pytest.raises(SettingsError, match=r"write|name the hosts") as caught:
        parse_hostlist(text)
    assert words in str(caught.value)
    assert len(str(caught.value)) < 300


def test_the_largest_list_is_taken() -> None:
    assert len(parse_hostlist(f"n[1-{MAX_HOSTS}]")) == MAX_HOSTS


names = st.text("abcxyz-_.", min_size=1, max_size=8)


@st.composite
def ranges(draw: st.DrawFn) -> tuple[str, list[str]]:
    first, count, width = draw(st.integers(0, 120)), draw(st.integers(1, 12)), draw(st.integers(1, 5))
    text = f"{first:0{width}}"
    width = len(text) if text.startswith("0") else 1
    numbers = [f"{number:0{width}}" for number in range(first, first + count)]
    return (text if count == 1 else f"{text}-{numbers[-1]}"), numbers


@given(st.lists(st.tuples(names, st.lists(ranges(), min_size=1, max_size=4)), max_size=4))
def test_ranges_expand_to_their_numbers_in_order_with_their_width(
    entries: list[tuple[str, list[tuple[str, list[str]]]]],
) -> None:
    text = ",".join(f"{name}[{','.join(written for written, _ in parts)}]" for name, parts in entries)
    expected = [f"{name}{number}" for name, parts in entries for _, numbers in parts for number in numbers]
    assert list(parse_hostlist(text)) == expected


@given(st.lists(st.text("ab[]1-", min_size=1, max_size=6).filter(lambda text: text.count("[") == text.count("]"))))
def test_an_entry_is_read_or_refused_and_never_lost(entries: list[str]) -> None:
    try:
        found = split_entries(",".join(entries))
    except SettingsError:
        return
    assert list(found) == entries


@given(st.lists(names))
def test_plain_names_stay_as_they_are(hosts: list[str]) -> None:
    assert list(parse_hostlist(" ".join(hosts))) == hosts
