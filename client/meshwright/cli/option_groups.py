"""Options that several commands share, said once: a frozen dataclass whose fields are the options.

Rule: a command that takes such a group as a parameter has each of its fields as an option, in their order. A field may
be a group itself.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, Final, TypeVar, cast, get_type_hints

GROUP: Final = "is_option_group"
"""A class attribute that tells a group from any other dataclass, such as a session."""

R = TypeVar("R")


def spread_options(run: Callable[..., R]) -> Callable[..., R]:
    """Returns the command with the fields of its option groups as keyword parameters, in the places of the groups."""
    given = inspect.signature(run, eval_str=True).parameters.values()
    groups = {each.name: each.annotation for each in given if _is_group(each.annotation)}

    @functools.wraps(run)
    def command(*positional: Any, **arguments: Any) -> R:
        made = {name: _build(group, arguments) for name, group in groups.items()}
        return run(*positional, **made, **arguments)

    taken = [part for each in given for part in (_spread(each.annotation) if each.name in groups else (each,))]
    first = next((place for place, each in enumerate(taken) if each.kind is each.KEYWORD_ONLY), len(taken))
    taken[first:] = (each.replace(kind=each.KEYWORD_ONLY) for each in taken[first:])
    cast(Any, command).__signature__ = inspect.Signature(taken)
    command.__annotations__ = {each.name: each.annotation for each in taken}
    return command


def _is_group(annotation: object) -> bool:
    return is_dataclass(annotation) and bool(getattr(annotation, GROUP, False))


def _build(group: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """Takes a group's fields out of the arguments."""
    hints = get_type_hints(group)
    inner = {name: _build(hint, arguments) for name, hint in hints.items() if _is_group(hint)}
    said = {field.name: arguments.pop(field.name) for field in fields(cast(Any, group)) if field.name in arguments}
    return group(**inner, **said)


def _spread(group: type) -> Iterator[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    for field in fields(cast(Any, group)):
        hint = hints[field.name]
        if _is_group(hint):
            yield from _spread(hint)
        else:
            default = _read_default(field)
            yield inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)


def _read_default(field: Field[Any]) -> Any:
    return inspect.Parameter.empty if field.default is MISSING else field.default
