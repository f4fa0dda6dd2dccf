"""The options of `meshwright plan`.

Rule: an option is the field of `POST /mesh/plan` that it names; what is not said is left to the agent's defaults.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import typer

from meshwright.cli.arguments import build_selection, parse_axis_types
from meshwright.cli.files import read_topology
from meshwright.cli.search import (
    AuditOption,
    ExplainOption,
    ExportOption,
    FallbackOption,
    PriceOption,
    SearchOption,
    TargetsOption,
    TopOption,
    build_search_arguments,
)
from meshwright.cli.step_options import AskedStep

MeshOption = Annotated[
    str | None, typer.Option("--mesh", metavar="MESH", help='The axes, outermost first: "dp:2,tp:-1".')
]
TargetOption = Annotated[
    str | None,
    typer.Option("--target", metavar="TARGET", help="On hardware that need not be here: v5p:4x4x28, 64*h100:8."),
]
MemoryStrategyOption = Annotated[
    Literal["conservative", "balanced", "aggressive"],
    typer.Option("--memory-strategy", help="How much memory the job may take."),
]


@dataclass(frozen=True, kw_only=True)
class AskedPlan:
    """What the options say, as they were given; each field is an option (`option_groups`)."""

    is_option_group: ClassVar[bool] = True

    mesh_option: MeshOption = None
    devices: Annotated[
        str | None, typer.Option("--devices", metavar="0,1", help="These: local indices, uuids or PCI bus ids.")
    ] = None
    count: Annotated[int | None, typer.Option("--count", metavar="N", help="Any N of them, near to each other.")] = None
    exclude: Annotated[str | None, typer.Option("--exclude", metavar="0,1", help="Not these.")] = None
    order: Annotated[
        Literal["planned", "given"],
        typer.Option("--order", help="The best order, or the one of --devices, row-major."),
    ] = "planned"
    axis_types: Annotated[
        str | None,
        typer.Option(
            "--axis-types", metavar="TYPES", help="auto, explicit or manual: for all, a list, or dp:auto,tp:explicit."
        ),
    ] = None
    allow_unused: Annotated[bool, typer.Option("--allow-unused", help="The mesh may leave devices out.")] = False
    memory_strategy: MemoryStrategyOption = "balanced"
    target: TargetOption = None
    topology: Annotated[
        list[Path] | None,
        typer.Option(
            "--topology", metavar="FILE", help="On these hosts: kept replies of GET /devices; may be repeated."
        ),
    ] = None
    dcn: Annotated[
        str | None, typer.Option("--dcn", metavar="dp:4", help="How axes are split over slices, or hosts.")
    ] = None
    importance: Annotated[
        str | None, typer.Option("--importance", metavar="tp:8,dp:1", help="How much traffic each axis has.")
    ] = None
    batch: Annotated[int | None, typer.Option("--batch", metavar="N", help="Sequences in one optimizer step.")] = None
    step: AskedStep
    search: SearchOption = None
    top: TopOption = 3
    explain: ExplainOption = False
    targets: TargetsOption = None
    price: PriceOption = None
    audit: AuditOption = False
    fallback: FallbackOption = False
    export: ExportOption = None
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Keep the plan, for MESHWRIGHT_PLAN.")
    ] = None
    code: Annotated[bool, typer.Option("--code", help="Print only the Python that makes the mesh.")] = False

    @property
    def is_elsewhere(self) -> bool:
        """Whether it is about hardware that need not be this host."""
        return bool(self.target or self.targets or self.topology)

    def build_arguments(self, mesh: str | None) -> dict[str, Any]:
        """Returns the keyword arguments of `Client.plans` that the options say.

        Args:
            mesh: the one that is asked for; None: the best for the model.

        Raises:
            typer.BadParameter: an option is none of its language, or stands beside one that excludes it.
            InvalidRequestError: the weights of --importance are none.
            SettingsError: a file cannot be read.
        """
        step = self.step.build_arguments(self.batch)
        searched = build_search_arguments(
            search=self.search,
            top=self.top,
            targets=self.targets,
            price=self.price,
            audit=self.audit,
            fallback=self.fallback,
            export=self.export,
            is_searched=mesh is None,
        )
        return {**step, **self._build_place(), **searched}

    def _build_place(self) -> dict[str, Any]:
        """Returns on which devices, in which order, and of which kind the axes are."""
        return {
            "devices": build_selection(self.devices, self.count, self.exclude),
            "device_order": self.order,
            "axis_types": None if self.axis_types is None else parse_axis_types(self.axis_types),
            "allow_unused": self.allow_unused,
            "memory_strategy": self.memory_strategy,
            "target": self.target,
            "topology": read_topology(self.topology) if self.topology else None,
            "dcn": self.dcn,
            "importance": None if self.importance is None else _parse_importance(self.importance),
        }


def _parse_importance(text: str) -> dict[str, float]:
    from meshwright.planning.request import parse_importance  # here, so that other commands do not wait for it

    return parse_importance(text)
