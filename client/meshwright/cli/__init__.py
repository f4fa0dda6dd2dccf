"""The `meshwright` command: asks an agent, shows the answer to a person, and tells a script by the exit code.

Rule: stdout is the answer, stderr is about the answer (errors, warnings, progress). What a command shows
stands in its own module; here stand the commands' names, the options that all share, and the exit codes.

    0    a plan that fits; healthy enough; done
    1    the answer is no: infeasible, does not fit, asked for and not verified, not healthy, failed, cancelled, wrong,
         or no such run, lease or component
    2    usage, or no answer: nobody there, not ready, a full queue, a wrong value, an address that is none
    70   a bug in this command: the traceback stands on stderr
    130  interrupted; a bench that was waited for is cancelled, an agent's compile goes on

Knows no HTTP and no jax.
"""

from __future__ import annotations

import functools
import inspect
import traceback
import warnings
from collections.abc import Callable, Sequence
from importlib import metadata
from typing import Annotated, Any, Final, cast

import typer

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
    slurm,
    targets,
    verify,
)
from meshwright.cli.arguments import check_timeout
from meshwright.cli.output import print_error, print_warning
from meshwright.cli.session import FAILED, NO_ANSWER, OK, Connect, Options, Session, open_client

BUG: Final = 70
"""EX_SOFTWARE of sysexits.h."""
INTERRUPTED: Final = 130
"""128 + SIGINT, as a shell says it."""

EXIT_CODES: Final[tuple[tuple[type[errors.MeshwrightError], int], ...]] = (
    (errors.PlanInfeasibleError, FAILED),
    (errors.DevicesUnusedError, FAILED),
    (errors.DoesNotDivideError, FAILED),
    (errors.BenchTooLargeError, FAILED),
    (errors.RunNotFoundError, FAILED),
    (errors.PlanNotFoundError, FAILED),
    (errors.LeaseNotFoundError, FAILED),
    (errors.ComponentNotFoundError, FAILED),
    (errors.ConflictError, FAILED),
    (errors.RunFailedError, FAILED),
    (errors.WorkerCrashedError, FAILED),
    (errors.WorkerTimeoutError, FAILED),
    (errors.WorkerFailedError, FAILED),
    (errors.InternalError, FAILED),
    (errors.MeshwrightError, NO_ANSWER),
)
"""The first class that an error belongs to decides."""

_EPILOG: Final = f"""\
\b
Exit codes:
  {OK}    a plan that fits; healthy enough; done
  {FAILED}    infeasible, does not fit, asked for and not verified, not healthy, failed,
       cancelled, wrong, no such run
  {NO_ANSWER}    usage, or no answer
  {BUG}   a bug in this command
  {INTERRUPTED}  interrupted
`check --exit-style` has codes of its own: see `meshwright check --help`.

The agent's address is --url, else MESHWRIGHT_URL, else http://127.0.0.1:8790;
MESHWRIGHT_TOKEN, MESHWRIGHT_TOKEN_FILE, MESHWRIGHT_CA_FILE and MESHWRIGHT_CLIENT_CERT_FILE
are heeded too."""

_Url = Annotated[str | None, typer.Option("--url", metavar="URL", help="The agent: http://host:port or unix:///path.")]
_Timeout = Annotated[
    float | None,
    typer.Option(
        "--timeout",
        metavar="S",
        callback=check_timeout,
        help="Seconds that one answer may take, a compile's too; not the whole of a bench, which has --max-s.",
    ),
]
_AsJson = Annotated[bool, typer.Option("--json", help="Print the agent's JSON, and nothing else.")]
_NoColor = Annotated[bool, typer.Option("--no-color", help="No colours; NO_COLOR does the same.")]
_SHARED: Final[dict[str, tuple[Any, Any]]] = {
    "url": (_Url, None),
    "timeout_s": (_Timeout, None),
    "as_json": (_AsJson, False),
    "no_color": (_NoColor, False),
}
"""The options that stand before or after a command's name: annotation and default."""

_Command = Callable[..., int]


def main(arguments: Sequence[str] | None = None, *, connect: Connect = open_client) -> None:
    """Runs the command line and exits.

    Args:
        arguments: what stands behind `meshwright`; None: the process's own.
        connect: opens the client; tests give one that answers from memory.

    Raises:
        SystemExit: always, with the exit code.
    """
    app(args=arguments, prog_name="meshwright", obj=_Start(connect))


class _Start:
    """What the command line begins with: how to connect, and the options before the command's name."""

    def __init__(self, connect: Connect) -> None:
        self.connect = connect
        self.options = Options()


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
    no_color: _NoColor = False,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        typer.echo(f"meshwright {metadata.version('meshwright')}")
        raise typer.Exit
    context.obj.options = Options(url, timeout_s, as_json, no_color)


def _carry_out(run: _Command, session: Session, arguments: dict[str, Any]) -> int:
    """Runs a command and returns its exit code; errors that are not bugs become messages."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("default", UserWarning)
            warnings.showwarning = functools.partial(_show_warning, session)
            code = run(session, **arguments)
    except errors.MeshwrightError as error:
        print_error(session, error)
        code = next(code for kind, code in EXIT_CODES if isinstance(error, kind))
    session.flush()
    return code


def _show_warning(session: Session, message: Warning | str, *_where: object) -> None:
    print_warning(session, str(message))


def _bind(run: _Command) -> Callable[..., None]:
    """Returns `run(session, …) -> exit code` as typer takes it: with the shared options for the session."""

    @functools.wraps(run)
    def command(context: typer.Context, **arguments: Any) -> None:
        own = Options(**{name: arguments.pop(name) for name in _SHARED})
        session = Session(context.obj.options.merge(own), context.obj.connect)
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


_COMMANDS: Final[dict[str, _Command]] = {
    "devices": devices.show_devices,
    "plan": plan.show_plan,
    "batch-size": batch_size.show_batch_size,
    "verify": verify.verify_step,
    "bench": bench.run_bench,
    "check": check.check_health,
    "environment": environment.show_environment,
    "targets": targets.show_targets,
    "runs": runs.show_runs,
    "cancel": runs.cancel_run,
    "release": devices.release_devices,
    "lease": leases.make_lease,
    "leases": leases.show_leases,
    "hold": hold.hold_lease,
    "events": events.show_events,
    "acknowledge": events.acknowledge_component,
    "slurm": slurm.print_slurm,
}
_SETTINGS: Final = {"hold": {"allow_interspersed_args": False}}
"""Of click, where a command has its own: what stands behind the name of a held command belongs to that command."""
for _name, _run in _COMMANDS.items():
    app.command(_name, context_settings=_SETTINGS.get(_name))(_bind(_run))
