"""Tables of settings, health rules and requests in docs/reference, generated: `python -m tests.reference --write`."""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin

from meshwright.planning.models import read_presets
from meshwright.wire.model import ModelSpec
from meshwright_agent import cli as agent_cli
from meshwright_agent.health.nics import NIC_RULES
from meshwright_agent.health.rules import CARD_RULES, DRIVER_RULES, Rule
from meshwright_agent.settings import Settings
from tests.documents import ROOT

REFERENCE: Final = ROOT / "docs" / "reference"
PAGES: Final = (REFERENCE / "settings.md", REFERENCE / "health.md", REFERENCE / "requests.md")
HEAD: Final = "| variable | flag | default | bounds | meaning |\n|---|---|---|---|---|\n"
RULES_HEAD: Final = "| rule of | state | holds when | action | source |\n|---|---|---|---|---|\n"
REQUESTS: Final = {
    "PlanRequest": "POST /mesh/plan",
    "SearchRequest": "POST /mesh/search",
    "BatchSizeRequest": "POST /batch-size",
    "TrainingSpec": "training",
    "ModelSpec": "model",
    "DeviceSelection": "selection of devices",
    "BenchRequest": "POST /placement/bench",
    "LeaseRequest": "PUT /leases/{lease_id}",
    "Acknowledgement": "POST /health/acknowledge",
    "PreflightRequest": "POST /preflight",
    "VerdictRequest": "PUT /leases/{lease_id}/verdict",
}
"""Schema → heading on the page."""
_HUGE: Final = 1e12
"""Bounds from here on only keep numbers computable, and are not told."""
_SIGNS: Final = {"gt": ">", "ge": "≥", "le": "≤"}


def write_page(path: Path) -> str:
    """Returns the text of one of `PAGES` with its generated table as the code has it; settings in their order."""
    if path.stem == "requests":
        return path.read_text(encoding="utf-8").partition("## ")[0] + "\n".join(_write_requests())
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


def _write_requests() -> Iterator[str]:
    """Yields the fields of all requests, from the contract."""
    contract = json.loads((ROOT / "tests" / "contract" / "openapi.json").read_text(encoding="utf-8"))
    schemas = {**contract["components"]["schemas"], "ModelSpec": ModelSpec.model_json_schema()}
    for name, heading in REQUESTS.items():
        schema = schemas[name]
        yield from (f"## {heading}", "", "| field | type | default | meaning |", "|---|---|---|---|")
        for field, value in schema["properties"].items():
            meaning, default = value.get("description", ""), value.get("default")
            word = "" if default in (None, [], {}) or "not said" in meaning else f"`{json.dumps(default)}`"
            word = "needed" if field in schema.get("required", ()) else word
            cells = (f"`{field}`", " or ".join(_list_types(value)), word, meaning)
            yield "|" + "".join(f" {cell} |" if cell else " |" for cell in cells)
        yield ""
        if name == "ModelSpec":
            presets = ", ".join(f"`{each.name}`" for each in read_presets() if not each.unsupported)
            yield from (f"Names of presets, in place of dimensions: {presets}.", "")


def _list_types(schema: dict[str, Any]) -> Iterator[str]:
    """Yields in words what a field may be."""
    if "anyOf" in schema:
        kinds = (kind for each in schema["anyOf"] for kind in _list_types(each))
        yield from dict.fromkeys(kind for kind in kinds if kind != "null")
    elif "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        yield f"[{REQUESTS[name]}](#{REQUESTS[name].replace(' ', '-')})" if name in REQUESTS else f"`{name}`"
    elif "enum" in schema:
        yield ", ".join(f"`{each}`" for each in schema["enum"])
    elif schema.get("type") == "array":
        yield f"list of {' or '.join(_list_types(schema['items']))}" if "items" in schema else "pair"
    else:
        signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤"}
        bounds = ", ".join(
            f"{sign} {schema[rule]:,.10g}" for rule, sign in signs.items() if schema.get(rule, _HUGE) < _HUGE
        )
        yield f"{schema['type']} {bounds}".rstrip()


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
