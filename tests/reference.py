"""The tables of settings and of health rules in docs/reference, generated: `python -m tests.reference --write`."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin

from meshwright_agent import cli as agent_cli
from meshwright_agent.health.nics import NIC_RULES
from meshwright_agent.health.rules import CARD_RULES, DRIVER_RULES, Rule
from meshwright_agent.settings import Settings
from tests.documents import ROOT

REFERENCE: Final = ROOT / "docs" / "reference"
PAGES: Final = (REFERENCE / "settings.md", REFERENCE / "health.md")
HEAD: Final = "| variable | flag | default | bounds | meaning |\n|---|---|---|---|---|\n"
RULES_HEAD: Final = "| rule of | state | holds when | action | source |\n|---|---|---|---|---|\n"
_SIGNS: Final = {"gt": ">", "ge": "≥", "le": "≤"}


def write_page(path: Path) -> str:
    """Returns the text of one of `PAGES` with its generated table as the code has it; settings in their order."""
    rules: list[Rule[Any]] = [*DRIVER_RULES, *CARD_RULES, *NIC_RULES]
    if path.stem == "settings":
        head, rows = HEAD, [*map(_write_row, Settings.model_fields)]
    else:
        head, rows = RULES_HEAD, [_write_rule(rule) for rule in rules if rule.state != "healthy"]
    before, found, rest = path.read_text(encoding="utf-8").partition(head)
    assert found, f"{path.name} has no table {head}"
    return before + head + "\n".join(rows) + rest[rest.index("\n\n") :]


def _write_rule(rule: Rule[Any]) -> str:
    action = re.sub(r"\{v\.gpu\.(\w+)\}", r"the \1 action", rule.action)
    action = action.replace("{v.tools}", "`ibstat`, `mlxlink` or `rdma link`")
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
    """Writes the pages, or returns 1 where one differs from the code."""
    behind = [path for path in PAGES if write_page(path) != path.read_text(encoding="utf-8")]
    for path in behind:
        if sys.argv[1:] == ["--write"]:
            path.write_text(write_page(path), encoding="utf-8")
        else:
            print(f"{path.name} is behind the code: --write")
    return int(bool(behind) and sys.argv[1:] != ["--write"])


if __name__ == "__main__":
    sys.exit(main())
