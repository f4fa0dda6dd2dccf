"""The requests of `meshwright plan`, `search` and `batch-size`: the fields of --request, and of options over them.

Rule: an option is the field of the request that it names; missing options have the agent's defaults.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import typer
from pydantic import ValidationError

from meshwright.cli.arguments import read_object
from meshwright.errors import AgentConnectionError
from meshwright.wire.base import RequestPart
from meshwright.wire.mesh import ExportName, PlanRequest
from meshwright.wire.problem import translate_validation

R = TypeVar("R", bound=RequestPart)

RequestOption = Annotated[
    str | None,
    typer.Option(
        "--request", metavar="FILE", help='The request as JSON; options win over its fields. "-": from stdin.'
    ),
]
TargetOption = Annotated[
    list[str] | None,
    typer.Option("--target", metavar="TARGET", help="On hardware that need not be here: v5p:4x4x28, 64*h100:8."),
]
ModelOption = Annotated[
    str | None,
    typer.Option("--model", metavar="MODEL", help="What is trained: llama3-70b, a config.json, or inline JSON."),
]
BatchOption = Annotated[
    int | None, typer.Option("--global-batch-size", metavar="N", help="Sequences in one optimizer step.")
]
SeqOption = Annotated[
    int | None,
    typer.Option("--seq-len", metavar="N", help="Tokens of a sequence; default: the model's context, at most 8192."),
]
CompileOption = Annotated[
    bool, typer.Option("--compile", help="Ask XLA's compiler for that hardware whether the step fits.")
]
DevicesOption = Annotated[
    str | None, typer.Option("--devices", metavar="0,1", help="Use these devices: local indices, uuids or PCI bus ids.")
]
CountOption = Annotated[
    int | None, typer.Option("--count", min=1, metavar="N", help="Use so many devices, whichever are well and free.")
]
Export = Literal[ExportName, "python"]
ExportOption = Annotated[
    Export | None,
    typer.Option(
        "--export",
        help="Print only this: JAX's mesh and PartitionSpecs, MaxText's flags, or Python that makes the mesh.",
    ),
]
SaveOption = Annotated[Path | None, typer.Option("--save", metavar="FILE", help="Keep the plan, for MESHWRIGHT_PLAN.")]
OfflineOption = Annotated[
    bool, typer.Option("--offline", help="Answer, and compile, here for --target or a topology, without an agent.")
]


def build_request(
    kind: type[R], request: str | None, *, model: str | None, trained: Mapping[str, object], **options: object
) -> R:
    """Returns the request of --request and the options.

    Args:
        trained: fields of `training` with their own options.
        options: fields with options, by their names. None, here and above: it is not given.

    Raises:
        SettingsError: a file cannot be read, or holds no JSON object.
        InvalidRequestError, InvalidMeshError: a field is unknown or has a wrong value.
        typer.BadParameter: the training is given without a model.
    """
    fields = {} if request is None else read_object(request, "--request")
    fields |= _drop_unsaid({**options, "model": None if model is None else parse_model(model)})
    given = _drop_unsaid(trained)
    below = fields.get("training")
    if given and isinstance(below, dict | None):  # anything else is refused below
        fields["training"] = {**(below or {}), **given}
    found = fields.get("training") or ({} if kind.model_fields["training"].is_required() else None)
    is_priced = fields.get("model") is not None and not fields.get("exports")
    if found is None and kind is PlanRequest and is_priced:
        found = {}
    if fields.get("model") is None and (found is not None or fields.get("compile")):
        raise typer.BadParameter("what is trained? write --model llama3-8b", param_hint="--model")
    if "global_batch_size" in trained and isinstance(found, dict) and "global_batch_size" not in found:
        raise typer.BadParameter("how many sequences has a step? write 64", param_hint="--global-batch-size")
    try:
        return kind.model_validate_json(json.dumps(fields))
    except ValidationError as error:
        raise translate_validation(error.errors()) from None


def parse_model(text: str) -> str | dict[str, Any]:
    """Returns the model of --model: the content of a file or of inline JSON; else the text, which names a preset.

    Raises:
        SettingsError: a file cannot be read, or holds no JSON object.
        typer.BadParameter: the inline JSON is not valid.
    """
    if text.lstrip().startswith("{"):
        try:
            found: dict[str, Any] = json.loads(text)
        except ValueError as error:
            words = f"no JSON: {error}; name a preset such as llama3-8b"
            raise typer.BadParameter(words, param_hint="--model") from None
        return found
    with contextlib.suppress(OSError):  # Python 3.11: the text is too long for a path, or below an unreadable folder
        if text.endswith(".json") or Path(text).is_file():
            return read_object(Path(text), "--model")
    return text


def take_target(targets: list[str] | None) -> str | None:
    """Returns the target of --target, which is repeated for `meshwright search` only.

    Raises:
        typer.BadParameter: there are several.
    """
    if targets and len(targets) > 1:
        message = f"{' and '.join(targets)} are given, and this command takes one; `meshwright search` compares several"
        raise typer.BadParameter(message, param_hint="--target")
    return targets[0] if targets else None


@contextlib.contextmanager
def suggest_offline(target: object) -> Iterator[None]:
    """Adds to the hint of an agent that does not answer in the block that a target needs none."""
    try:
        yield
    except AgentConnectionError as error:
        if target:
            error.hint += "; or add --offline, since a target needs no agent"
        raise


def list_exports(export: Export | None) -> list[ExportName] | None:
    """Returns the exports of the request: a plan has its Python anyway."""
    return None if export is None or export == "python" else [export]


def _drop_unsaid(fields: Mapping[str, object]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
