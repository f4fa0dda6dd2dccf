"""A plan by reference: the value that a launcher puts into MESHWRIGHT_PLAN so that every rank starts from the same
plan.

A reference is a file with the agent's JSON, or a fingerprint that the agent knows. Independent of jax.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter, ValidationError

from meshwright._calls.calls import take_best
from meshwright._client import Client
from meshwright.errors import SettingsError
from meshwright.wire.mesh import Plan, Plans

_FINGERPRINT: Final = re.compile(r"mw\d+-[0-9a-f]{16,}")
_EITHER: Final = TypeAdapter[Plans | Plan](Plans | Plan)
_RULE: Final = "a plan is referred to by a file (`meshwright plan … --save plan.json`) or by a fingerprint (mw1-…)"


def load_plan(reference: str | os.PathLike[str] | None = None, *, client: Client | None = None) -> Plan:
    """Returns the plan that `reference`, or otherwise MESHWRIGHT_PLAN, names, for `build_mesh`.

    Args:
        reference: a file with the JSON of a plan or of an agent's reply, or a fingerprint.
        client: requests a fingerprint; None: a client with MESHWRIGHT_URL and the other settings.

    Raises:
        SettingsError: there is no reference, or it is neither a file with a plan nor a fingerprint.
        NotFoundError: the agent has no plan with this fingerprint.
        PlanInfeasibleError: the file holds a reply without a plan.
        AgentConnectionError: the agent does not answer.
    """
    asked = os.fspath(reference) if reference is not None else os.environ.get("MESHWRIGHT_PLAN", "")
    if not asked:
        raise SettingsError(f"no plan is named: give a reference, or set MESHWRIGHT_PLAN; {_RULE}")
    if _FINGERPRINT.fullmatch(asked) and not Path(asked).exists():
        return _fetch(asked, client)
    return parse_plan(_read(asked), asked=asked)


def parse_plan(text: str | bytes, *, asked: str) -> Plan:
    """Returns the plan in a JSON text, the best one if it is a whole reply; `asked` names it in messages.

    Raises:
        SettingsError: the text is neither.
        PlanInfeasibleError: the text is a reply without a plan.
    """
    try:
        found = _EITHER.validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise SettingsError(f"{asked!r} holds no plan: {first['msg']}; {_RULE}") from error
    return found if isinstance(found, Plan) else take_best(found, asked=asked)


def _fetch(fingerprint: str, client: Client | None) -> Plan:
    if client is not None:
        return client.get_plan(fingerprint)
    with Client() as own:
        return own.get_plan(fingerprint)


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except (OSError, ValueError) as error:
        raise SettingsError(
            f"plan {path!r} is no file that can be read ({error}) and no fingerprint; {_RULE}"
        ) from error
