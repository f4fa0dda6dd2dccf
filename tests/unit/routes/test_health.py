"""/readyz is one short line, whatever a dying worker wrote."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from meshwright.wire.health import Component
from meshwright_agent.routes.health import MAX_LINE_CHARS, format_health, shorten_line


@given(st.text(max_size=300) | st.text(st.sampled_from("a \n\r\t\0\x1b\u2028\udcff"), max_size=300))
def test_a_reason_is_one_line_of_at_most_80_printable_characters(text: str) -> None:
    line = shorten_line(text)
    assert len(line) <= MAX_LINE_CHARS == 80
    assert line.isprintable()
    line.encode()


def test_text_lists_the_worst_first_with_what_to_do() -> None:
    parts = [Component(name="worker", state="healthy", reason="answers")]
    parts.append(Component(name="device:0", state="unhealthy", reason="XID 79", action="reboot"))
    lines = format_health("unhealthy", parts).splitlines()
    assert lines == ["health: unhealthy", "unhealthy    device:0: XID 79", "             → reboot", lines[3]]
    assert lines[3] == "healthy      worker: answers"
