"""Reads plans: as a file, as the agent's JSON, or by the fingerprint that a launcher puts into MESHWRIGHT_PLAN.

Independent of jax, and of the HTTP library until a fingerprint is asked for.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydantic import TypeAdapter, ValidationError

from meshwright.errors import SettingsError
from meshwright.wire.mesh import Plan, Plans

if TYPE_CHECKING:
    from meshwright._client.blocking import Client

PlanLike = Plan | Plans | Mapping[str, Any] | str | bytes | os.PathLike[str]
"""A plan, the agent's whole reply (its best plan counts), the same as a mapping or JSON, or a file that holds it."""

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
    if _is_file(asked):
        return read_plan(Path(asked))
    if client is not None:
        return client.get_plan(asked)
    from meshwright._client.blocking import Client

    with Client() as own:
        return own.get_plan(asked)


def find_plan(reference: str) -> str | Plan:
    """Returns the fingerprint that a reference is, or the plan in its file; errors as of `read_plan`."""
    return read_plan(Path(reference)) if _is_file(reference) else reference


def _is_file(reference: str) -> bool:
    return not _FINGERPRINT.fullmatch(reference) or Path(reference).exists()


def read_plan(plan: PlanLike) -> Plan:
    """Returns a plan, of a whole reply the best one.

    Raises:
        SettingsError: it is neither, or its file cannot be read.
        PlanInfeasibleError: it is a reply without a plan.
    """
    asked = "the argument"
    if isinstance(plan, os.PathLike) or (isinstance(plan, str) and not plan.lstrip().startswith(("{", "["))):
        asked = repr(os.fspath(plan))
        if not _is_file(os.fspath(plan)):
            message = f"{asked} is a plan that an agent stores, and no agent is asked here"
            raise SettingsError(f"{message}; name a file: `meshwright plan … --save plan.json`")
        try:
            plan = Path(plan).read_bytes()
        except (OSError, ValueError) as error:
            message = f"plan {asked} is no file that can be read ({error}) and no fingerprint; {_RULE}"
            raise SettingsError(message) from error
    try:
        if isinstance(plan, str | bytes):
            plan = _EITHER.validate_json(plan)
        found = _EITHER.validate_python(plan)
    except ValidationError as error:
        wrong = error.errors(include_url=False, include_input=False)
        is_one = "missing", ("Plans", "plans")  # not a whole reply
        first = next((each for each in wrong if (each["type"], each["loc"]) != is_one), wrong[0])
        where = ".".join(map(str, first["loc"][1:])) + ": " * (len(first["loc"]) > 1)
        raise SettingsError(f"{asked} holds no plan: {where}{first['msg']}; {_RULE}") from error
    if isinstance(found, Plan):
        return found
    from meshwright._client.requests import take_best

    return take_best(found, asked=asked)
