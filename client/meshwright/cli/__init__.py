"""The `meshwright` command: asks an agent, shows the answer to a person, and reports it to a script by the exit code.

Rule: stdout is the answer, stderr is about the answer (errors, warnings, progress). The output of a command is in its
own module. This module has the commands' names, the shared options, and the exit codes.

    0    a plan that fits; healthy enough; done
    1    the answer is no: infeasible, does not fit, one of several targets does not exist, requested and not verified,
         not healthy, failed, cancelled, wrong, no such run, lease or component, or the devices are reserved
    2    usage, or no answer: no agent, not allowed, not ready, a full queue, a wrong value or address, a stdout that
         cannot be written
    70   a bug in this command: the traceback is on stderr
    75   a lease was lost before its command ended (lease run)
    130  interrupted (by signal n: 128 + n); a bench with a waiting client is cancelled, an agent's compile continues

A command's module is imported when the command is called: each imports what it needs. Independent of HTTP and jax.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import signal
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module, metadata
from typing import Annotated, Any, Final, Literal, cast

import typer
from typer.core import TyperGroup

from meshwright import errors
from meshwright.cli.arguments import check_timeout
from meshwright.cli.output import print_error, print_warning
from meshwright.cli.session import (
    FAILED,
    LEASE_LOST,
    NO_ANSWER,
    OK,
    SIGNALLED,
    UNWRITABLE,
    LateError,
    Options,
    Session,
    drop,
    limit_time,
    open_missing_streams,
)

BUG: Final = 70
"""EX_SOFTWARE of sysexits.h."""
INTERRUPTED: Final = 130
"""128 + SIGINT, as in a shell."""

_FAILED: Final = (errors.PlanInfeasibleError, errors.NotFoundError, errors.ConflictError, errors.RunFailedError)
_FAILED_CODES: Final = frozenset({"bench_too_large", "worker_failed", "internal"})
"""The request failed; all other errors mean a wrong value, or no answer."""


def find_error_exit_code(error: errors.MeshwrightError) -> int:
    """Returns the exit code of an error."""
    return FAILED if isinstance(error, _FAILED) or getattr(error, "code", "") in _FAILED_CODES else NO_ANSWER


_EPILOG: Final = f"""\
\b
Exit codes:
  {OK}    done; the plan fits; the host is healthy or degraded
  {FAILED}    the answer is no: infeasible, does not fit, not healthy, failed,
       cancelled, not found, or the devices are busy or reserved
  {NO_ANSWER}    usage, or no answer: no agent, not allowed, not ready
  {BUG}   a bug in this command
  {LEASE_LOST}   the lease was lost before the command ended (lease run)
  {INTERRUPTED}  interrupted; ended by another signal n: 128 + n
`health --format nagios|slurm` has codes of its own, `lease run` those of its command.

The agent's address is --url, else MESHWRIGHT_URL, else the socket /run/meshwright/agent.sock, else http://127.0.0.1:8790;
MESHWRIGHT_TOKEN, MESHWRIGHT_TOKEN_FILE, MESHWRIGHT_CA_FILE and MESHWRIGHT_CLIENT_CERT_FILE are used too."""

_Url = Annotated[str | None, typer.Option("--url", metavar="URL", help="The agent: http://host:port or unix:///path.")]
_Timeout = Annotated[
    float | None,
    typer.Option(
        "--timeout",
        metavar="S",
        callback=check_timeout,
        help="Seconds for the whole command; an agent's compile goes on. lease run: for each reply.",
    ),
]
_Format = Annotated[
    Literal["text", "json"] | None, typer.Option("--format", help="text for people; json: what the agent answered.")
]
_SHARED: Final[dict[str, Any]] = {"url": _Url, "timeout_s": _Timeout, "form": _Format}
"""The options before or after a command's name; each is None unless given."""

_Command = Callable[..., int]


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line and exits.

    Args:
        arguments: the arguments after `meshwright`; None: those of the process.

    Raises:
        SystemExit: always, with the exit code.
    """
    open_missing_streams()
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, _interrupt)
    app(args=arguments, prog_name="meshwright")


def _interrupt(number: int, _frame: object) -> None:
    """Ends a command as Ctrl-C does, so that it gives back what it has."""
    raise KeyboardInterrupt(number)


_ARGUMENTS: Final = "meshwright.arguments"
"""Where a context keeps the arguments of a command: those before a "--"."""
_UsageError: Final = cast(type[Exception], typer.BadParameter.__base__)
"""Of click, which typer carries in itself and does not name."""


@contextlib.contextmanager
def _explaining_usage(arguments: Sequence[str]) -> Iterator[None]:
    """Gives a usage error of `health` the exit code of its format, and an error of pydantic our words."""
    try:
        yield
    except _UsageError as error:
        from pydantic import ValidationError  # here, since few commands end so

        from meshwright.cli.health import find_usage_code
        from meshwright.wire.problem import translate_validation

        if "health" in arguments:
            cast(Any, error).exit_code = find_usage_code(arguments)
        if isinstance(error.__cause__, ValidationError):
            cast(Any, error).message = translate_validation(error.__cause__.errors()).errors[0]["message"]
        raise


class _LazyCommands(Mapping[str, Any]):
    """The commands by name, in typer's form. The module of a command is imported when the command is looked up."""

    def __getitem__(self, name: str) -> Any:
        return _load(name)

    def __iter__(self) -> Iterator[str]:
        return iter(_COMMANDS)

    def __len__(self) -> int:
        return len(_COMMANDS)


class _Commands(TyperGroup):
    """Commands of one word or two: `devices`, and `devices release`."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**{**attributes, "commands": _LazyCommands()})

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Reads the options of all commands."""
        own = args[: args.index("--")] if "--" in args else [*args]  # a command behind -- has its own words
        with _explaining_usage(own):
            context = super().make_context(info_name, args, parent, **extra)
        context.meta[_ARGUMENTS] = own
        return context

    def invoke(self, ctx: Any) -> Any:
        """Reads the options of one command, and runs it."""
        try:
            with _explaining_usage(ctx.meta[_ARGUMENTS]):
                return super().invoke(ctx)
        except KeyboardInterrupt as interrupted:  # while its module is imported, too
            raise typer.Exit(SIGNALLED + interrupted.args[0] if interrupted.args else INTERRUPTED) from None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Reads two words where these are a command."""
        name = " ".join(args[:2])
        if name in self.commands:
            return name, self.commands[name], args[2:]
        below = [each for each in self.commands if each.startswith(f"{args[0]} ")]
        if below and args[0] not in self.commands and not ctx.resilient_parsing:
            known = ", ".join(each.partition(" ")[2] for each in below)
            if args[1:2] in (["-h"], ["--help"]):
                typer.echo(f"{args[0]} has: {known}; each has a help of its own")
                ctx.exit()
            ctx.fail(f"{args[0]} needs one of: {known}")
        return (None, None, args) if below and ctx.resilient_parsing else super().resolve_command(ctx, args)


app: typer.Typer = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
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
    form: _Format = None,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        typer.echo(f"meshwright {metadata.version('meshwright')}")
        raise typer.Exit
    context.obj = Options(url, timeout_s, form)


def _carry_out(run: _Command, session: Session, arguments: dict[str, Any], error_code: int | None) -> int:
    """Runs a command and returns its exit code; errors that are not bugs become messages."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("default", UserWarning)
            warnings.showwarning = lambda message, *_: print_warning(session, str(message))
            code = run(session, **arguments)
        session.flush()
    except errors.MeshwrightError as error:
        with contextlib.suppress(OSError):
            print_error(session, error)
        code = error_code or find_error_exit_code(error)
    except OSError as error:
        if error.errno not in UNWRITABLE:
            raise
        drop(1)
        with contextlib.suppress(OSError):
            print_error(session, errors.SettingsError(f"stdout cannot be written: {error.strerror}; free some room"))
        code = NO_ANSWER
    return code


def _bind(run: _Command, entry: _Entry) -> Callable[..., None]:
    """Returns `run(session, …) -> exit code` in typer's form, with the shared options for the session."""
    _, *parameters = inspect.signature(run, eval_str=True).parameters.values()
    names = {each.name for each in parameters}
    shared_names = [name for name in _SHARED if name not in names]  # health has formats of its own

    @functools.wraps(run)
    def command(context: typer.Context, **arguments: Any) -> None:
        own = Options(**{name: arguments.pop(name) for name in shared_names})
        if (form := arguments.get("form")) is not None:
            own = replace(own, form="json" if form == "json" else "text")
        session = Session(context.obj.merge(own))
        limit_s = None if entry.keeps_limit else session.options.timeout_s
        try:
            with limit_time(limit_s):
                code = _carry_out(run, session, arguments, entry.error_code)
            raise typer.Exit(code)
        except LateError:
            print_error(session, errors.AgentTimeoutError(f"not done within {limit_s:g} s; give it a longer --timeout"))
            raise typer.Exit(NO_ANSWER) from None
        except (typer.Exit, typer.BadParameter):  # typer's to end with
            raise
        except Exception:
            with contextlib.suppress(OSError):
                traceback.print_exc()
            raise typer.Exit(BUG) from None

    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_SHARED[name])
        for name in shared_names
    ]
    context = inspect.Parameter("context", inspect.Parameter.POSITIONAL_ONLY, annotation=typer.Context)
    taken = [context, *(each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters), *shared]
    cast(Any, command).__signature__ = inspect.Signature(taken)
    command.__annotations__ = {each.name: each.annotation for each in taken}
    return command


@dataclass(frozen=True)
class _Entry:
    """A command: its function as "module.name", and its text in the list of commands (which fits 80 columns)."""

    run: str
    short: str
    is_interspersed: bool = True  # False: the words after the first one belong to another command
    keeps_limit: bool = False  # True: it keeps --timeout itself, since its exit codes are not those of other commands
    error_code: int | None = None  # of every error; None: by `find_error_exit_code`


_COMMANDS: Final[dict[str, _Entry]] = {
    "devices": _Entry("devices.show_devices", "Devices: memory, place, who holds them; of several hosts."),
    "devices release": _Entry("devices.release_devices", "Make the agent release its devices."),
    "plan": _Entry("plan.show_plan", "Lay a mesh on devices or a target."),
    "search": _Entry("search.search_mesh", "Find the best meshes for a model."),
    "batch-size": _Entry("batch_size.show_batch_size", "How large a batch should be, and why."),
    "compile": _Entry("compiling.compile_step", "Compile a step of your own for a plan's hardware."),
    "bench": _Entry("bench.run_bench", "Measure transfers, collectives, matmul and memory."),
    "preflight": _Entry(  # its 1 is of a host at fault, so that no error has it
        "preflight.check_hosts", "Check many hosts before a job; name the culprit.", error_code=NO_ANSWER
    ),
    "preflight wait": _Entry(
        "preflight.wait_for_verdict", "Wait for a preflight's verdict on this host.", error_code=NO_ANSWER
    ),
    "runs list": _Entry("runs.list_runs", "The agent's benches, compiles and preflights, newest first."),
    "runs show": _Entry("runs.show_run", "One run."),
    "runs cancel": _Entry("runs.cancel_run", "Cancel a run."),
    "health": _Entry("health.check_health", "The host's health, as text and exit code.", keeps_limit=True),
    "health ack": _Entry("events.acknowledge_component", "Acknowledge a component's faults."),
    "events": _Entry("events.show_events", "Changes of the host's health."),
    "lease create": _Entry("leases.create_lease", "Reserve devices."),
    "lease list": _Entry("leases.list_leases", "Who has reserved which devices."),
    "lease renew": _Entry("leases.renew_lease", "Extend a lease."),
    "lease end": _Entry("leases.end_lease", "End leases."),
    "lease run": _Entry(
        "leases.run_leased", "Run a command while devices are reserved for it.", is_interspersed=False, keeps_limit=True
    ),
    "hardware": _Entry("hardware.show_hardware", "Chips, hosts and TPU slices that can be planned on."),
    "env": _Entry("devices.show_environment", "The variables that a job should start with."),
}


@functools.cache
def _load(name: str) -> Any:
    """Returns a command in typer's form. Raises KeyError if there is no such command."""
    entry = _COMMANDS[name]
    module, _, function = entry.run.partition(".")
    run = getattr(import_module(f"meshwright.cli.{module}"), function)
    own = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)
    settings = {"allow_interspersed_args": entry.is_interspersed}
    own.command(name, short_help=entry.short, context_settings=settings)(_bind(run, entry))
    return typer.main.get_command(own)
