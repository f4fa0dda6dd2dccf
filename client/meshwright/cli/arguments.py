"""Arguments: the small languages of the command line, sizes and lists, as values; and the options of a plan.

Rule: a text that is none is a usage error that names the option and a value that works. Meshes are not read
here: the agent reads them, so that there is one grammar. `meshwright plan` and `meshwright-agent plan` take the same
options, from here.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args

import typer
from pydantic import ValidationError

from meshwright.errors import SettingsError
from meshwright.wire.bench import BenchCase
from meshwright.wire.devices import Devices
from meshwright.wire.model import Attention, Remat, WeightDtype

MAX_TIMEOUT_S: Final = 86400.0
_UNITS: Final = {
    "": 1,
    "B": 1,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
}
_SIZE: Final = re.compile(r"(\d{1,20}(?:\.\d{1,20})?)\s*([A-Za-z]*)", re.ASCII)


def parse_size(text: str, option: str = "--size") -> int:
    """Returns the bytes that "1MiB", "64KiB", "0.5GiB", "4MB" or "1048576" say.

    Raises:
        typer.BadParameter: it is none of that, or no whole number of bytes.
    """
    match = _SIZE.fullmatch(text.strip())
    unit = _UNITS.get(match[2].upper()) if match else None
    if match is None or unit is None:
        raise typer.BadParameter(
            f"{text!r} is no size; write 1MiB (1048576 bytes), 1MB (1000000 bytes) or a number of bytes",
            param_hint=option,
        )
    size = Fraction(match[1]) * unit
    if size.denominator != 1:
        raise typer.BadParameter(f"{text!r} is no whole number of bytes", param_hint=option)
    return int(size)


def parse_devices(text: str, option: str = "--devices") -> tuple[int | str, ...]:
    """Returns the devices of "0,1" or "GPU-…,0000:19:00.0": numbers are local indices, other words names.

    Raises:
        typer.BadParameter: an entry is empty.
    """
    entries = [entry.strip() for entry in text.split(",")]
    if not all(entries):
        raise typer.BadParameter(f"{text!r} has an empty entry; write 0,1 or uuids", param_hint=option)
    return tuple(_parse_device(entry) for entry in entries)


def _parse_device(entry: str) -> int | str:
    digits = entry.removeprefix("-")
    return int(entry) if digits.isascii() and digits.isdigit() and len(digits) <= 18 else entry


def parse_indices(text: str, option: str = "--devices") -> tuple[int, ...]:
    """Returns the local indices of "0,1".

    Raises:
        typer.BadParameter: an entry is no number.
    """
    devices = parse_devices(text, option)
    wrong = [device for device in devices if isinstance(device, str)]
    if wrong:
        raise typer.BadParameter(f"{wrong[0]!r} is no local index; write 0,1", param_hint=option)
    return tuple(device for device in devices if isinstance(device, int))


def parse_case(text: str, option: str = "--case") -> BenchCase:
    """Returns the bench case that "all_reduce" or "all-reduce" names.

    Raises:
        typer.BadParameter: there is none of that name.
    """
    word = text.strip().lower().replace("-", "_")
    cases: tuple[BenchCase, ...] = get_args(BenchCase)
    case = next((case for case in cases if case == word), None)
    if case is None:
        near = difflib.get_close_matches(word, cases, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise typer.BadParameter(f"{text!r} is none of {', '.join(cases)}{hint}", param_hint=option)
    return case


def check_timeout(timeout_s: float | None) -> float | None:
    """Returns the time limit as it is.

    Raises:
        typer.BadParameter: it is no number of seconds above 0 and up to a day.
    """
    if timeout_s is not None and not 0 < timeout_s <= MAX_TIMEOUT_S:
        raise typer.BadParameter(f"{timeout_s} is not above 0 and up to {MAX_TIMEOUT_S:.0f}; write 30")
    return timeout_s


def parse_axis_types(text: str) -> str | tuple[str, ...] | dict[str, str]:
    """Returns the axis types that a text says: for all, one an axis, or by name.

    As in "explicit", "auto,explicit" and "dp:auto,tp:explicit".

    Raises:
        typer.BadParameter: an entry is empty, or only some name their axis.
    """
    entries = [entry.strip() for entry in text.split(",")]
    named = [entry.partition(":")[::2] for entry in entries if ":" in entry]
    if not all(entries) or len(named) not in {0, len(entries)} or not all(map(all, named)):
        raise typer.BadParameter(
            f"{text!r} mixes forms; write explicit, auto,explicit or dp:auto,tp:explicit",
            param_hint="--axis-types",
        )
    if named:
        return {name.strip(): word.strip() for name, word in named}
    return entries[0] if len(entries) == 1 else tuple(entries)


def build_selection(
    devices: str | None, count: int | None, policy: str | None, exclude: str | None
) -> tuple[int | str, ...] | Mapping[str, Any] | None:
    """Returns what `Client.plan` takes as `devices`: names, a selection, or None for all.

    Raises:
        typer.BadParameter: devices are named and also counted.
    """
    selection: dict[str, Any] = {"count": count, "policy": policy}
    selection["exclude"] = None if exclude is None else parse_devices(exclude, "--exclude")
    selection = {name: value for name, value in selection.items() if value is not None}
    if devices is None:
        return selection or None
    if selection:
        raise typer.BadParameter(
            f"it names the devices, so --{next(iter(selection))} has nothing to choose; give one of them",
            param_hint="--devices",
        )
    return parse_devices(devices)


# ---- the options of a plan ----

DevicesOption = Annotated[
    str | None, typer.Option("--devices", metavar="0,1", help="These: local indices, uuids or PCI bus ids.")
]
CountOption = Annotated[int | None, typer.Option("--count", metavar="N", help="Any N of them.")]
PolicyOption = Annotated[
    Literal["packed", "spread"] | None, typer.Option("--policy", help="How to choose them: near to each other, or far.")
]
ExcludeOption = Annotated[str | None, typer.Option("--exclude", metavar="0,1", help="Not these.")]
OrderOption = Annotated[
    Literal["planned", "given"], typer.Option("--order", help="The best order, or the one of --devices, row-major.")
]
AxisTypesOption = Annotated[
    str | None,
    typer.Option(
        "--axis-types", metavar="TYPES", help="auto, explicit or manual: for all, a list, or dp:auto,tp:explicit."
    ),
]
AllowUnusedOption = Annotated[bool, typer.Option("--allow-unused", help="The mesh may leave devices out.")]
MemoryStrategyOption = Annotated[
    Literal["conservative", "balanced", "aggressive"],
    typer.Option("--memory-strategy", help="How much memory the job may take."),
]
TargetOption = Annotated[
    str | None,
    typer.Option("--target", metavar="TARGET", help="On hardware that need not be here: v5p:4x4x28, 64*h100:8."),
]
TopologyOption = Annotated[
    list[Path] | None,
    typer.Option("--topology", metavar="FILE", help="On these hosts: kept replies of GET /devices; may be repeated."),
]
DcnOption = Annotated[
    str | None, typer.Option("--dcn", metavar="dp:4", help="How axes are split over slices, or hosts.")
]
ImportanceOption = Annotated[
    str | None, typer.Option("--importance", metavar="tp:8,dp:1", help="How much traffic each axis has.")
]
MeshOption = Annotated[
    str | None, typer.Option("--mesh", metavar="MESH", help='The axes, outermost first: "dp:2,tp:-1".')
]
ModelOption = Annotated[
    str | None,
    typer.Option("--model", metavar="MODEL", help="What is trained: llama3-70b, a config.json, or inline JSON."),
]
SequenceOption = Annotated[int | None, typer.Option("--seq", metavar="N", help="Tokens of a sequence.")]
GlobalBatchOption = Annotated[int | None, typer.Option("--batch", metavar="N", help="Sequences in one optimizer step.")]
RematOption = Annotated[Remat | None, typer.Option("--remat", help="What the backward pass computes again.")]
AttentionOption = Annotated[
    Attention | None, typer.Option("--attention", help="In blocks, or as the whole matrix of scores.")
]
WeightDtypeOption = Annotated[WeightDtype | None, typer.Option("--weight-dtype", help="Of the weights.")]
OptimizerOption = Annotated[Literal["adamw", "sgd"] | None, typer.Option("--optimizer", help="Which one.")]
TrainingOption = Annotated[
    Path | None,
    typer.Option("--training", metavar="FILE", help="How it is trained, as JSON; the options above win over it."),
]
VerifyOption = Annotated[
    Literal["none", "compile"],
    typer.Option("--verify", help="compile: ask XLA's compiler for that hardware whether the step fits."),
]
OutputOption = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", help="Keep the plan, for MESHWRIGHT_PLAN.")
]
CodeOption = Annotated[bool, typer.Option("--code", help="Print only the Python that makes the mesh.")]


def build_plan_arguments(
    *,
    devices: str | None,
    count: int | None,
    policy: str | None,
    exclude: str | None,
    order: str,
    axis_types: str | None,
    allow_unused: bool,
    memory_strategy: str,
    target: str | None,
    topology: list[Path] | None = None,
    dcn: str | None,
    importance: str | None,
) -> dict[str, Any]:
    """Returns the keyword arguments of `Client.plans` that these options say.

    Raises:
        typer.BadParameter: an option is none of its language, or stands beside one that excludes it.
        InvalidRequestError: the weights are none.
        SettingsError: a file cannot be read.
    """
    return {
        "devices": build_selection(devices, count, policy, exclude),
        "device_order": order,
        "axis_types": None if axis_types is None else parse_axis_types(axis_types),
        "allow_unused": allow_unused,
        "memory_strategy": memory_strategy,
        "target": target,
        "topology": read_topology(topology) if topology else None,
        "dcn": dcn,
        "importance": None if importance is None else _parse_importance(importance),
    }


def take_mesh(argument: str | None, option: str | None, *, is_searched: bool) -> str | None:
    """Returns the mesh, which stands as an argument or behind --mesh; None where one is searched for.

    Args:
        argument, option: where it may stand.
        is_searched: a model is given, so that a mesh may be found.

    Raises:
        typer.BadParameter: it stands in neither place and there is no model, or in both.
    """
    given = [text for text in (argument, option) if text is not None]
    if is_searched and not given:
        return None
    if len(given) != 1:
        said = "it stands as an argument too" if given else "a plan needs a mesh, or a model to find one for"
        raise typer.BadParameter(f"{said}; write --mesh dp:2,tp:-1", param_hint="--mesh")
    return given[0]


def build_step_arguments(
    *,
    model: str | None,
    training: Path | None,
    verify: str,
    sequence_length: int | None = None,
    global_batch: int | None = None,
    **fields: str | None,
) -> dict[str, Any]:
    """Returns the arguments `model`, `training` and `verify` of `Client.plans` that these options say.

    Raises:
        SettingsError: a file cannot be read, or holds no JSON object.
        typer.BadParameter: they say how something is trained, and no model.
    """
    said = {"sequence_length": sequence_length, "global_batch": global_batch, **fields}
    kept = {name: value for name, value in said.items() if value is not None}
    trained = {**(_read_object(training, "--training") if training else {}), **kept}
    if model is None and (trained or verify != "none"):
        raise typer.BadParameter(
            "the other options say how it is trained; write --model llama3-8b", param_hint="--model"
        )
    return {"model": None if model is None else parse_model(model), "training": trained or None, "verify": verify}


def parse_model(text: str) -> str | dict[str, Any]:
    """Returns the model of --model: the content of a file or of inline JSON; else the text, which names a preset.

    Raises:
        SettingsError: a file cannot be read, or holds no JSON object.
        typer.BadParameter: the inline JSON is none.
    """
    if text.lstrip().startswith("{"):
        try:
            found: dict[str, Any] = json.loads(text)
        except ValueError as error:
            raise typer.BadParameter(
                f"no JSON: {error}; name a preset such as llama3-8b", param_hint="--model"
            ) from None
        return found
    return _read_object(Path(text), "--model") if text.endswith(".json") or Path(text).is_file() else text


def _read_object(path: Path, option: str) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{option} {path}: cannot be read: {error.strerror}; name a file that is there") from None
    except ValueError as error:
        raise SettingsError(f"{option} {path}: no JSON: {error}; it holds one object, such as {{…}}") from None
    if not isinstance(found, dict):
        raise SettingsError(
            f"{option} {path}: its JSON is a {type(found).__name__}; it holds one object, such as {{…}}"
        )
    return found


def _parse_importance(text: str) -> dict[str, float]:
    from meshwright.planning.request import parse_importance  # here, so that other commands do not wait for it

    return parse_importance(text)


def read_topology(paths: list[Path]) -> tuple[dict[str, Any], ...]:
    """Returns the replies of `GET /devices` that files hold: one each, or a list of them.

    Raises:
        SettingsError: a file cannot be read, or holds neither.
    """
    return tuple(reply for path in paths for reply in _read_replies(path))


def _read_replies(path: Path) -> list[dict[str, Any]]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"--topology {path}: cannot be read: {error.strerror}; name a file that is there") from None
    except ValueError as error:
        raise SettingsError(f"--topology {path}: no JSON: {error}; keep one with `curl …/devices > {path}`") from None
    replies = found if isinstance(found, list) else [found]
    try:
        for reply in replies:
            Devices.model_validate(reply)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        wrong = f"{where}: {first['msg']}" if where else first["msg"]
        raise SettingsError(
            f"--topology {path}: no reply of GET /devices, nor a list of them ({wrong}); keep what `curl …/devices` "
            f"prints"
        ) from None
    return replies
