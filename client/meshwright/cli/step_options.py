"""What is trained, and how, on the command line: the options of `plan` and `batch-size` that say it.

Rule: what is not said is left to the agent's defaults; the options win over the file of --training.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import typer

from meshwright.cli.files import read_object
from meshwright.wire.model import Attention, Remat, WeightDtype


@dataclass(frozen=True, kw_only=True)
class AskedStep:
    """What the options say, as they were given; each field is an option (`option_groups`)."""

    is_option_group: ClassVar[bool] = True

    model: Annotated[
        str | None,
        typer.Option("--model", metavar="MODEL", help="What is trained: llama3-70b, a config.json, or inline JSON."),
    ] = None
    seq: Annotated[int | None, typer.Option("--seq", metavar="N", help="Tokens of a sequence.")] = None
    remat: Annotated[Remat | None, typer.Option("--remat", help="What the backward pass computes again.")] = None
    attention: Annotated[
        Attention | None, typer.Option("--attention", help="In blocks, or as the whole matrix of scores.")
    ] = None
    weight_dtype: Annotated[WeightDtype | None, typer.Option("--weight-dtype", help="Of the weights.")] = None
    optimizer: Annotated[Literal["adamw", "sgd"] | None, typer.Option("--optimizer", help="Which one.")] = None
    training: Annotated[
        Path | None,
        typer.Option("--training", metavar="FILE", help="How it is trained, as JSON; the options above win over it."),
    ] = None
    verify: Annotated[
        Literal["none", "compile"],
        typer.Option("--verify", help="compile: ask XLA's compiler for that hardware whether the step fits."),
    ] = "none"

    def build_arguments(self, global_batch: int | None) -> dict[str, Any]:
        """Returns the arguments `model`, `training` and `verify` of `Client.plans` that the options say.

        Args:
            global_batch: sequences of a step; the commands have each an option of their own for them.

        Raises:
            SettingsError: a file cannot be read, or holds no JSON object.
            typer.BadParameter: they say how something is trained, and no model.
        """
        said = {
            "sequence_length": self.seq,
            "global_batch": global_batch,
            "remat": self.remat,
            "attention": self.attention,
            "weight_dtype": self.weight_dtype,
            "optimizer": self.optimizer,
        }
        kept = {name: value for name, value in said.items() if value is not None}
        trained = {**(read_object(self.training, "--training") if self.training else {}), **kept}
        if self.model is None and (trained or self.verify != "none"):
            raise typer.BadParameter(
                "the other options say how it is trained; write --model llama3-8b", param_hint="--model"
            )
        model = None if self.model is None else parse_model(self.model)
        return {"model": model, "training": trained or None, "verify": self.verify}


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
    return read_object(Path(text), "--model") if text.endswith(".json") or Path(text).is_file() else text
