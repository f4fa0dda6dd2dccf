"""Flags of the command line as settings. Wrong ones end the command with 2, each named with its variable."""

from __future__ import annotations

from typing import Any

import typer
from pydantic import ValidationError

from meshwright_agent.settings import Settings


def read_settings(**flags: Any) -> Settings:
    """Returns the settings of flags, where they are given, and the environment; ends with 2 where they are wrong."""
    try:
        return Settings(**{name: value for name, value in flags.items() if value is not None})
    except ValidationError as error:
        for wrong in error.errors():
            name = ".".join(str(part) for part in wrong["loc"])
            flag = f"--{name.replace('_', '-')} / " if name in flags else ""
            typer.echo(f"{flag}MESHWRIGHT_{name.upper()}: {wrong['msg']}, got {wrong['input']!r}", err=True)
        raise typer.Exit(2) from None
