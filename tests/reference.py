"""The tables of settings and health rules in service/README.md, generated: `python -m tests.reference --write`."""

from __future__ import annotations

import inspect
import re
import sys
from typing import Any, Final, Literal, get_args, get_origin

from meshwright_agent import cli as agent_cli
from meshwright_agent.health.rules import CARD_RULES, DRIVER_RULES, Rule
from meshwright_agent.settings import Settings
from tests.documents import ROOT

PAGE: Final = ROOT / "service" / "README.md"
HEAD: Final = "| variable | flag | default | bounds | meaning |\n|---|---|---|---|---|\n"
RULES_HEAD: Final = "| rule of | state | holds when | action | source |\n|---|---|---|---|---|\n"
_SIGNS: Final = {"gt": ">", "ge": "≥", "le": "≤"}


def write_page(text: str) -> str:
    """Returns the page with its generated tables as the code has them."""
    rules: list[Rule[Any]] = [*DRIVER_RULES, *CARD_RULES]
    text = _write_table(text, RULES_HEAD, [_write_rule(rule) for rule in rules if rule.state != "healthy"])
    return write_settings(text)


def write_settings(text: str) -> str:
    """Returns the page with its table of settings as the code has them; in the order of `Settings`."""
    return _write_table(text, HEAD, [*map(_write_row, Settings.model_fields)])


def _write_table(text: str, head: str, rows: list[str]) -> str:
    before, found, rest = text.partition(head)
    assert found, f"{PAGE.name} has no table {head}"
    return before + head + "\n".join(rows) + rest[rest.index("\n\n") :]


def _write_rule(rule: Rule[Any]) -> str:
    action = re.sub(r"\{v\.gpu\.(\w+)\}", r"the \1 action", rule.action)
    return f"| `{rule.component}` | `{rule.state}` | {rule.when} | {action} | {rule.source} |"


def _write_row(name: str) -> str:
    field = Settings.model_fields[name]
    has_flag = name in inspect.signature(agent_cli.serve).parameters
    flag = f"`--{name.replace('_', '-')}`" if has_flag else ""
    default = _write_default(field)
    cells = [f"`MESHWRIGHT_{name.upper()}`", flag, f"`{default}`" if default else "", _write_bounds(field)]
    return "|" + "".join(f" {cell} |" if cell else " |" for cell in [*cells, field.description or ""])


def _write_default(field: Any) -> str:
    if field.default_factory is not None:
        return "$STATE_DIRECTORY, $XDG_STATE_HOME/meshwright or ~/.local/state/meshwright"
    if field.default is None:
        return ""
    return f"{field.default:g}" if isinstance(field.default, float) else f"{field.default}"


def _write_bounds(field: Any) -> str:
    if get_origin(field.annotation) is Literal:
        return ", ".join(get_args(field.annotation))
    found = {sign: getattr(rule, sign) for rule in field.metadata for sign in _SIGNS if hasattr(rule, sign)}
    return ", ".join(f"{_SIGNS[sign]} {found[sign]}" for sign in _SIGNS if sign in found)


def main() -> int:
    """Writes the page, or says whether it is as the code."""
    text = PAGE.read_text(encoding="utf-8")
    written = write_page(text)
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(written, encoding="utf-8")
        return 0
    print("as the code" if written == text else f"{PAGE.name} is behind the code: --write")
    return int(written != text)


if __name__ == "__main__":
    sys.exit(main())
