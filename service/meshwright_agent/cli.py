"""`meshwright-agent`: serve, doctor, token. Flags are settings; a setting given neither way has its default.

Exit codes: 0 stopped as asked, or nothing is wrong · 1 could not start, or something is wrong · 2 usage, or files and
addresses that an agent must not start with.
"""

from __future__ import annotations

import contextlib
import json
import logging
import shlex
import shutil
import socket
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

import meshwright_agent
from meshwright.errors import StoreUnavailableError
from meshwright_agent.commands.flags import read_settings
from meshwright_agent.commands.token import app as token_app
from meshwright_agent.settings import Settings

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="The device agent of a JAX host. Every flag is also a setting MESHWRIGHT_…; service/README.md lists them.",
)
app.add_typer(token_app, name="token")


def main() -> None:
    """Runs the command line."""
    app()


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        typer.echo(f"meshwright-agent {meshwright_agent.__version__}")
        raise typer.Exit


@app.command()
def serve(
    host: Annotated[str | None, typer.Option(help='Address to listen on; "" for no TCP.')] = None,
    port: Annotated[int | None, typer.Option(help="TCP port; 0 picks a free one.")] = None,
    uds: Annotated[Path | None, typer.Option(help="Unix socket to listen on as well.")] = None,
    cpu_devices: Annotated[int | None, typer.Option(help="Use N virtual CPU devices, not the accelerators.")] = None,
    simulate: Annotated[str | None, typer.Option(help="Answer for this target: 64*h100:8; no hardware.")] = None,
    state_dir: Annotated[Path | None, typer.Option(help="Where runs and plans are kept.")] = None,
    memory_strategy: Annotated[str | None, typer.Option(help="conservative, balanced or aggressive.")] = None,
    idle_release_s: Annotated[float | None, typer.Option(help="Give idle accelerators back after so long.")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
    tokens_file: Annotated[Path | None, typer.Option(help="Tokens of those who may ask.")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Listen beyond loopback without tokens.")] = False,
    tls_cert_file: Annotated[Path | None, typer.Option(help="Certificate with its chain, PEM.")] = None,
    tls_key_file: Annotated[Path | None, typer.Option(help="Its key, PEM.")] = None,
    tls_client_ca_file: Annotated[Path | None, typer.Option(help="CA of the clients' certificates, PEM.")] = None,
) -> None:
    """Run the agent until SIGTERM or SIGINT."""
    settings = read_settings(
        host=host,
        port=port,
        uds=uds,
        cpu_devices=cpu_devices,
        simulate=simulate,
        state_dir=state_dir,
        memory_strategy=memory_strategy,
        idle_release_s=idle_release_s,
        log_level=log_level,
        tokens_file=tokens_file,
        insecure=insecure or None,
        tls_cert_file=tls_cert_file,
        tls_key_file=tls_key_file,
        tls_client_ca_file=tls_client_ca_file,
    )
    raise typer.Exit(_serve(settings))


@app.command()
def doctor(
    cpu_devices: Annotated[int | None, typer.Option(help="Check as the agent with N virtual CPU devices.")] = None,
    simulate: Annotated[str | None, typer.Option(help="Check as the agent that answers for this target.")] = None,
    state_dir: Annotated[Path | None, typer.Option(help="The agent's state directory.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Say in plain words what is wrong with this host's JAX, and how to mend it."""
    from meshwright_agent.doctor.examination import examine
    from meshwright_agent.doctor.findings import format_findings
    from meshwright_agent.serving.claim import find_owner

    settings = read_settings(cpu_devices=cpu_devices, simulate=simulate, state_dir=state_dir)
    findings = examine(settings, owner=find_owner(settings.sysfs_root))
    if as_json:
        typer.echo(json.dumps([finding.as_dict() for finding in findings], indent=2))
    else:
        typer.echo(format_findings(findings))
    raise typer.Exit(1 if any(finding.level == "wrong" for finding in findings) else 0)


def _serve(settings: Settings) -> int:
    from meshwright_agent.access.errors import AccessSettingsError
    from meshwright_agent.api.app import build_app
    from meshwright_agent.descriptors import raise_descriptor_limit
    from meshwright_agent.serving.claim import HostTakenError
    from meshwright_agent.serving.refused import RefusedConnections
    from meshwright_agent.serving.server import CannotListenError, serve
    from meshwright_agent.telemetry.logs import logging_to_stderr
    from meshwright_agent.telemetry.tracing import TRACING, TracingUnavailableError

    sending = TRACING.sending(meshwright_agent.__version__) if settings.tracing else contextlib.nullcontext()
    try:
        with logging_to_stderr(settings.log_format, settings.log_level), sending:
            raise_descriptor_limit()
            refused: RefusedConnections = Counter()
            with _claiming(settings) as tell:
                return serve(settings, partial(build_app, refused=refused), on_listening=tell, refused=refused)
    except (CannotListenError, StoreUnavailableError, TracingUnavailableError, HostTakenError) as error:
        typer.echo(str(error), err=True)
        return 1
    except AccessSettingsError as error:
        typer.echo(str(error), err=True)
        return 2


@contextlib.contextmanager
def _claiming(settings: Settings) -> Iterator[Callable[[list[str]], None]]:
    """Holds this host's devices against other agents, if this one will own any; yields who is to be told the addresses.

    Raises:
        HostTakenError: another agent has them.
    """
    from meshwright_agent.serving.claim import claim_host
    from meshwright_agent.supervisor.specs import has_accelerators

    owns = settings.cpu_devices is None and settings.simulate is None and has_accelerators(settings)
    claim = claim_host(settings.sysfs_root) if owns else None

    def tell(addresses: list[str]) -> None:
        if claim is not None:
            claim.tell(addresses)
        if settings.log_format == "json":
            _log_addresses(addresses, settings)
        else:
            _print_addresses(addresses, settings)

    try:
        yield tell
    finally:
        if claim is not None:
            claim.release()


def _log_addresses(addresses: list[str], settings: Settings) -> None:
    """Says where the agent listens as one record of the log, at any level: collectors join stdout and stderr."""
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
    """Returns lines for a shell that ask an agent at this address; what only the caller has is a variable in them."""
    variables = ""
    if address.startswith("unix://"):
        curl = f"curl -s --unix-socket {address.removeprefix('unix://')} http://agent"
    else:
        options = "" if settings.tokens_file is None else ' -H "Authorization: Bearer $MESHWRIGHT_TOKEN"'
        if settings.tls_client_ca_file is not None:
            options = f' --cert "$MESHWRIGHT_CLIENT_CERT_FILE" --key "$MESHWRIGHT_CLIENT_KEY_FILE"{options}'
        if settings.tls_cert_file is not None:
            address = address.replace("//0.0.0.0:", f"//{socket.gethostname()}:")  # which no certificate names
            address = address.replace("//[::]:", f"//{socket.gethostname()}:")
            options = f" --cacert {shlex.quote(str(settings.tls_cert_file))}{options}"
            variables = f" MESHWRIGHT_CA_FILE={shlex.quote(str(settings.tls_cert_file))}"
        curl = f"curl -s{options} {address}"
    quick = f"{curl}/placement/bench --json '{{}}'".replace("curl -s", "curl -s -i")
    return [
        f"{curl}/readyz",
        f"{curl}/devices?format=text".replace("?", r"\?"),
        f"{curl}/mesh/plan?mesh=dp:2,tp:-1".replace("?", r"\?"),
        f"{curl}/batch-size?hardware=h100".replace("?", r"\?"),
        *([] if settings.simulate else [quick]),
        f"MESHWRIGHT_URL={address}{variables} {_find_command()} plan dp:2,tp:-1",
    ]


def _find_command() -> str:
    """Returns how `meshwright` is called from here: by name if it is on the path, else by where it stands."""
    command = Path(sys.executable).with_name("meshwright")
    if shutil.which("meshwright") or not command.exists():
        return "meshwright"
    return str(command.relative_to(Path.cwd()) if command.is_relative_to(Path.cwd()) else command)
