"""The `meshwright` command: asks an agent, shows the answer to a person, and tells a script by the exit code.

Rule: stdout is the answer, stderr is about the answer (errors, warnings, progress). What a command shows
stands in its own module; here stand the commands' names, the options that all share, and the exit codes.

    0    a plan that fits; healthy enough; done
    1    the answer is no: infeasible, does not fit, one of several targets does not exist, asked for and not verified,
         not healthy, failed, cancelled, wrong, no such run, lease or component, or somebody else has the devices
    2    usage, or no answer: nobody there, not allowed, not ready, a full queue, a wrong value, an address that is
         none, a stdout that cannot be written
    70   a bug in this command: the traceback stands on stderr
    75   a lease was lost before its command ended (hold)
    130  interrupted; a bench that was waited for is cancelled, an agent's compile goes on

Knows no HTTP and no jax.
"""

from __future__ import annotations

import functools
import inspect
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Annotated, Any, Final, cast

import typer
from typer.core import TyperCommand

from meshwright import errors
from meshwright.cli import (
    batch_size,
    bench,
    check,
    devices,
    environment,
    events,
    hold,
    leases,
    plan,
    runs,
    search,
    targets,
    verify,
)
from meshwright.cli.arguments import check_timeout
from meshwright.cli.check import CheckCommand
from meshwright.cli.output import print_error, print_warning
from meshwright.cli.session import (
    FAILED,
    NO_ANSWER,
    OK,
    UNWRITABLE,
    Options,
    Session,
    drop_stdout,
    open_missing_streams,
)

BUG: Final = 70
"""EX_SOFTWARE of sysexits.h."""
INTERRUPTED: Final = 130
"""128 + SIGINT, as a shell says it."""

EXIT_CODES: Final[tuple[tuple[type[errors.MeshwrightError], int], ...]] = (
    (errors.PlanInfeasibleError, FAILED),
    (errors.DevicesUnusedError, FAILED),
    (errors.DoesNotDivideError, FAILED),
    (errors.BenchTooLargeError, FAILED),
    (errors.NotFoundError, FAILED),
    (errors.ConflictError, FAILED),
    (errors.RunFailedError, FAILED),
    (errors.WorkerFailedError, FAILED),
    (errors.InternalError, FAILED),
    (errors.MeshwrightError, NO_ANSWER),
)
"""The first class that an error belongs to decides."""

_EPILOG: Final = f"""\
\b
Exit codes:
  {OK}    a plan that fits; healthy enough; done
  {FAILED}    infeasible, does not fit, one of several targets does not
       exist, asked for and
       not verified, not healthy, failed, cancelled, wrong, no such run, lease
       or component; or somebody else has the devices
  {NO_ANSWER}    usage, or no answer; not allowed; not ready
  {BUG}   a bug in this command
  {hold.LEASE_LOST}   a lease was lost before its command ended (hold)
  {INTERRUPTED}  interrupted
`check --exit-style` has codes of its own, `hold` its command's: see their --help.

The agent's address is --url, else MESHWRIGHT_URL, else the socket /run/meshwright/agent.sock, else http://127.0.0.1:8790;
MESHWRIGHT_TOKEN, MESHWRIGHT_TOKEN_FILE, MESHWRIGHT_CA_FILE and MESHWRIGHT_CLIENT_CERT_FILE
are heeded too."""

_Url = Annotated[str | None, typer.Option("--url", metavar="URL", help="The agent: http://host:port or unix:///path.")]
_Timeout = Annotated[
    float | None,
    typer.Option(
        "--timeout",
        metavar="S",
        callback=check_timeout,
        help="Seconds that an answer may keep silent, and a compile take; of check and fleets the whole command, "
        "of a bench not: its request has max_s.",
    ),
]
_AsJson = Annotated[bool, typer.Option("--json", help="Print the agent's JSON, and nothing else.")]
_SHARED: Final[dict[str, tuple[Any, Any]]] = {
    "url": (_Url, None),
    "timeout_s": (_Timeout, None),
    "as_json": (_AsJson, False),
}
"""The options that stand before or after a command's name: annotation and default."""

_Command = Callable[..., int]


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line and exits.

    Args:
        arguments: what stands behind `meshwright`; None: the process's own.

    Raises:
        SystemExit: always, with the exit code.
    """
    open_missing_streams()
    app(args=arguments, prog_name="meshwright")


app: typer.Typer = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    epilog=_EPILOG,
    help="What is on a JAX host, which mesh, how large a batch, how fast it is: asks the host's agent.",
)


@app.callback(invoke_without_command=True)
def _begin(
    context: typer.Context,
    url: _Url = None,
    timeout_s: _Timeout = None,
    as_json: _AsJson = False,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        typer.echo(f"meshwright {metadata.version('meshwright')}")
        raise typer.Exit
    context.obj = Options(url, timeout_s, as_json)


def _carry_out(run: _Command, session: Session, arguments: dict[str, Any]) -> int:
    """Runs a command and returns its exit code; errors that are not bugs become messages."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("default", UserWarning)
            warnings.showwarning = functools.partial(_show_warning, session)
            code = run(session, **arguments)
        session.flush()
    except errors.MeshwrightError as error:
        print_error(session, error)
        code = next(code for kind, code in EXIT_CODES if isinstance(error, kind))
    except OSError as error:
        if error.errno not in UNWRITABLE:
            raise
        drop_stdout()
        print_error(session, errors.SettingsError(f"stdout cannot be written: {error.strerror}; free some room"))
        code = NO_ANSWER
    return code


def _show_warning(session: Session, message: Warning | str, *_where: object) -> None:
    print_warning(session, str(message))


def _bind(run: _Command) -> Callable[..., None]:
    """Returns `run(session, …) -> exit code` as typer takes it: with the shared options for the session."""

    @functools.wraps(run)
    def command(context: typer.Context, **arguments: Any) -> None:
        own = Options(**{name: arguments.pop(name) for name in _SHARED})
        session = Session(context.obj.merge(own))
        try:
            raise typer.Exit(_carry_out(run, session, arguments))
        except (typer.Exit, typer.BadParameter):  # typer's to end with
            raise
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        except Exception:
            traceback.print_exc()
            raise typer.Exit(BUG) from None

    _, *parameters = inspect.signature(run, eval_str=True).parameters.values()
    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, (annotation, default) in _SHARED.items()
    ]
    context = inspect.Parameter("context", inspect.Parameter.POSITIONAL_ONLY, annotation=typer.Context)
    taken = [context, *(each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters), *shared]
    cast(Any, command).__signature__ = inspect.Signature(taken)
    command.__annotations__ = {each.name: each.annotation for each in taken}
    return command


@dataclass(frozen=True)
class _Entry:
    """A command: what it runs, and what the list of commands says of it (a line of 80 columns cuts nothing)."""

    run: _Command
    short: str
    cls: type[TyperCommand] | None = None
    is_interspersed: bool = True  # False: what stands behind the first word belongs to another command


_COMMANDS: Final[dict[str, _Entry]] = {
    "devices": _Entry(devices.show_devices, "What is here: memory, place, who holds it; --fleet: many hosts."),
    "plan": _Entry(plan.show_plan, "Lay a mesh on devices or a target."),
    "search": _Entry(search.search_mesh, "Find the best meshes for a model."),
    "batch-size": _Entry(batch_size.show_batch_size, "How large a batch should be, and why."),
    "verify": _Entry(verify.verify_step, "Compile a step of your own for a kept plan's hardware."),
    "bench": _Entry(bench.run_bench, "Measure transfers, collectives, matmul and memory."),
    "check": _Entry(check.check_health, "The host's health, and what a job requires, as exit code.", CheckCommand),
    "environment": _Entry(environment.show_environment, "The variables that a job should start with."),
    "targets": _Entry(targets.show_targets, "Chips, hosts and TPU slices that can be planned on."),
    "runs": _Entry(runs.show_runs, "The agent's runs, newest first."),
    "cancel": _Entry(runs.cancel_run, "Cancel a run."),
    "release": _Entry(devices.release_devices, "Make the agent let go of the devices."),
    "lease": _Entry(leases.make_lease, "Reserve devices."),
    "leases": _Entry(leases.show_leases, "Who has reserved which devices; renew, end."),
    "hold": _Entry(hold.hold_lease, "Run a command while devices are reserved for it.", is_interspersed=False),
    "events": _Entry(events.show_events, "What happened to the host's health."),
    "acknowledge": _Entry(events.acknowledge_component, "Say that a component's faults are dealt with."),
}
for _name, _entry in _COMMANDS.items():
    _settings = {"allow_interspersed_args": _entry.is_interspersed}
    app.command(_name, cls=_entry.cls, short_help=_entry.short, context_settings=_settings)(_bind(_entry.run))
