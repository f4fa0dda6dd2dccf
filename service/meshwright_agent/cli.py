"""`meshwright-agent`: serve, doctor, token. Flags are settings; a setting given neither way has its default.

Exit codes: 0 stopped as asked, or nothing is wrong · 1 could not start, or something is wrong · 2 usage, or files and
addresses that an agent must not start with.
"""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import shlex
import shutil
import socket
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

import meshwright_agent
from meshwright_agent.settings import Settings, name_unknown
from meshwright_agent.store import StoreUnavailableError

log = logging.getLogger(__name__)

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="The device agent of a JAX host. Every flag is also a setting MESHWRIGHT_…: docs/reference/settings.md.",
)
token_app = typer.Typer(
    no_args_is_help=True, add_completion=False, rich_markup_mode=None, help="Tokens of those who may call an agent."
)
app.add_typer(token_app, name="token")


def main() -> None:
    """Runs the command line."""
    app()


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if version:
        typer.echo(f"meshwright-agent {meshwright_agent.__version__}")
        raise typer.Exit


@app.command()
def serve(
    context: typer.Context,
    host: Annotated[str | None, typer.Option(help='Address to listen on; "" for no TCP.')] = None,
    port: Annotated[int | None, typer.Option(help="TCP port; 0 picks a free one.")] = None,
    uds: Annotated[str | None, typer.Option(help='Unix socket to listen on as well; "" for none.')] = None,
    cpu_devices: Annotated[int | None, typer.Option(help="Use N virtual CPU devices, not the accelerators.")] = None,
    simulate: Annotated[str | None, typer.Option(help="Answer for this target: 64*h100:8; no hardware.")] = None,
    state_dir: Annotated[Path | None, typer.Option(help="Where the database is kept.")] = None,
    memory_strategy: Annotated[str | None, typer.Option(help="conservative, balanced or aggressive.")] = None,
    idle_release_s: Annotated[float | None, typer.Option(help="Give idle accelerators back after so long.")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
    tokens_file: Annotated[Path | None, typer.Option(help="File of tokens, one a line.")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Without tokens: every user may do everything.")] = False,
    tls_cert_file: Annotated[Path | None, typer.Option(help="Certificate with its chain, PEM.")] = None,
    tls_key_file: Annotated[Path | None, typer.Option(help="Its key, PEM.")] = None,
    tls_client_ca_file: Annotated[Path | None, typer.Option(help="CA of the clients' certificates, PEM.")] = None,
) -> None:
    """Run the agent until SIGTERM or SIGINT."""
    raise typer.Exit(_serve(read_settings(**context.params | {"insecure": insecure or None})))


@app.command()
def doctor(
    cpu_devices: Annotated[int | None, typer.Option(help="Check as the agent with N virtual CPU devices.")] = None,
    simulate: Annotated[str | None, typer.Option(help="Check as the agent that answers for this target.")] = None,
    state_dir: Annotated[Path | None, typer.Option(help="The agent's state directory.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Say in plain words what is wrong with this host's JAX, and how to fix it."""
    from meshwright_agent.doctor import examine, format_findings
    from meshwright_agent.server import find_owner

    settings = read_settings(cpu_devices=cpu_devices, simulate=simulate, state_dir=state_dir)
    pid, _ = find_owner(settings.host_root)
    owner = f"they belong to the agent of this host (process {pid})" if pid else ""
    findings = examine(settings, owner=owner)
    if as_json:
        typer.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        typer.echo(format_findings(findings))
    raise typer.Exit(1 if any(finding.level == "wrong" for finding in findings) else 0)


@token_app.command("new")
def new_token(
    name: Annotated[str, typer.Argument(help="Who will use it; stands in the audit, such as prolog.")],
    scope: Annotated[str, typer.Option(help="read, operate or admin; each holds those before it.")] = "read",
    expires: Annotated[str, typer.Option(help="90d, 12h, or a time: 2027-01-31T00:00:00Z. Never, if left out.")] = "",
) -> None:
    """Print on stdout a new token's line for the agent's token file, without the secret, and the secret on stderr.

    So `>>tokens` adds a line or nothing, and an error is seen. The agent reads its token file again within a second or
    two; to take a token back, delete its line.
    """
    from meshwright_agent.auth import make_token, parse_expiry

    try:
        secret, token = make_token(name, scope, parse_expiry(expires, datetime.now(UTC)) if expires else None)
    except ValueError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None
    typer.echo(str(token))
    typer.echo(secret, err=True)


def read_settings(**flags: Any) -> Settings:
    """Returns the settings from the given flags and the environment. Exits with 2 if they are wrong."""
    try:
        return Settings(**{name: value for name, value in flags.items() if value is not None})
    except ValidationError as error:
        for wrong in error.errors():
            name = ".".join(str(part) for part in wrong["loc"])
            flag = f"--{name.replace('_', '-')} / " if name in flags else ""
            said = wrong["msg"].removeprefix("Value error, ")
            got = "" if wrong["input"] is None else f", got {wrong['input']!r}"  # None: a default, not given
            typer.echo(f"{flag}MESHWRIGHT_{name.upper()}: {said}{got}", err=True)
        raise typer.Exit(2) from None


def _serve(settings: Settings) -> int:
    from meshwright_agent.app import build_app
    from meshwright_agent.auth import AccessSettingsError, Authenticator
    from meshwright_agent.clock import SystemClock
    from meshwright_agent.facts.sysfs import list_folder
    from meshwright_agent.logs import logging_to_stderr
    from meshwright_agent.server import CannotListenError, HostTakenError, claim_host, serve
    from meshwright_agent.supervisor.specs import has_accelerators

    gc.freeze()  # what was imported stays: each later search for garbage leaves it out
    gc.enable()
    owns = settings.cpu_devices is None and settings.simulate is None and has_accelerators(settings)
    tell = _log_addresses if settings.log_format == "json" else _print_addresses
    try:
        with logging_to_stderr(settings.log_format, settings.log_level):
            if unknown := name_unknown(os.environ):
                log.warning("set, but read by nothing: %s; docs/reference/settings.md has the variables", unknown)
            for folder in (settings.host_root / "sys", settings.host_root / "proc"):
                if settings.simulate is None and not list_folder(folder):  # without facts a host would count as healthy
                    raise AccessSettingsError(f"MESHWRIGHT_HOST_ROOT: {folder} is missing or empty; give a host's root")
            authenticator = Authenticator(settings, SystemClock())
            with claim_host(settings.host_root) if owns else contextlib.nullcontext():
                serve(settings, build_app, authenticator, on_listening=partial(tell, settings=settings))
    except (CannotListenError, StoreUnavailableError, HostTakenError, AccessSettingsError) as error:
        typer.echo(str(error), err=True)
        return 2 if isinstance(error, AccessSettingsError) else 1
    return 0


def _log_addresses(addresses: list[str], settings: Settings) -> None:
    """Logs the addresses of the agent as one record, at any level, because collectors join stdout and stderr."""
    log = logging.getLogger("meshwright.listening")
    log.setLevel(logging.INFO)
    version = meshwright_agent.__version__
    extra = {"version": version, "addresses": addresses, "simulates": settings.simulate}
    log.info("meshwright agent %s listens on %s", version, ", ".join(addresses), extra=extra)


def _print_addresses(addresses: list[str], settings: Settings) -> None:
    typer.echo(f"meshwright agent {meshwright_agent.__version__} listens on {', '.join(addresses)}")
    if settings.simulate is not None:
        typer.echo(f"simulates {settings.simulate}: its devices are declared, none is here, nothing can be measured")
    lines = _list_tries(addresses[0], settings)
    typer.echo("try:\n" + "\n".join(f"  {line}" for line in lines))
    sys.stdout.flush()


def _list_tries(address: str, settings: Settings) -> list[str]:
    """Returns shell commands for an agent at this address. Values that only the caller has are variables."""
    variables = ""
    if address.startswith("unix://"):
        curl = f"curl -s --unix-socket {address.removeprefix('unix://')} http://agent"
    else:
        options = "" if settings.tokens_file is None else ' -H "Authorization: Bearer $MESHWRIGHT_TOKEN"'
        if settings.tls_client_ca_file is not None:
            options = f' --cert "$MESHWRIGHT_CLIENT_CERT_FILE" --key "$MESHWRIGHT_CLIENT_KEY_FILE"{options}'
        if settings.tls_cert_file is not None:
            address = address.replace("//0.0.0.0:", f"//{socket.gethostname()}:")  # certificates do not name 0.0.0.0
            address = address.replace("//[::]:", f"//{socket.gethostname()}:")
            options = f" --cacert {shlex.quote(str(settings.tls_cert_file))}{options}"
            variables = f" MESHWRIGHT_CA_FILE={shlex.quote(str(settings.tls_cert_file))}"
        curl = f"curl -s{options} {address}"
    may_bench = settings.insecure or settings.tokens_file is not None or address.startswith("unix://")
    quick = f"{curl}/placement/bench --json '{{}}'".replace("curl -s", "curl -s -i")
    return [
        f"{curl}/readyz",
        f"{curl}/devices?format=text".replace("?", r"\?"),
        f"{curl}/mesh/plan?mesh=dp:2,tp:-1".replace("?", r"\?"),
        f"{curl}/batch-size?hardware=h100".replace("?", r"\?"),
        *([] if settings.simulate or not may_bench else [quick]),
        f"MESHWRIGHT_URL={address}{variables} {_find_command()} plan dp:2,tp:-1",
    ]


def _find_command() -> str:
    """Returns the command of `meshwright`: its name if it is on the path, else its full path."""
    command = Path(sys.executable).with_name("meshwright")
    if shutil.which("meshwright") or not command.exists():
        return "meshwright"
    return str(command.relative_to(Path.cwd()) if command.is_relative_to(Path.cwd()) else command)
