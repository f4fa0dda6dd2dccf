"""Lines of memory maps are told from all others."""

from __future__ import annotations

from pathlib import Path

from meshwright.compiling.crash_log import is_map_line


def test_each_line_of_a_real_map_is_one() -> None:
    lines = Path("/proc/self/maps").read_text().splitlines()
    assert len(lines) > 20
    assert all(map(is_map_line, lines))
    assert is_map_line(
        "E1122 00:00:00.000000 7 thread.cc:1837] 7f2d10000000-7f2d10021000 rw-p 00000000 00:00 0 librt.so"
    )
