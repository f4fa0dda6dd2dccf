"""Whether a mesh cuts a model, its batch and its sequences into equal parts.

Rule: what an axis cuts is said by its name, and what it cuts it divides; nothing is padded in silence. Where an axis
does not divide, the sizes that would are named, the other axes as they are. Knows no devices: whether there are
enough for another size is the planner's question.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from meshwright.errors import DoesNotDivideError, InvalidRequestError
from meshwright.planning.divisors import choose_near, list_divisors, write_values
from meshwright.planning.parallelism import ROLE_NAMES, Role, find_role
from meshwright.wire.model import ModelSpec, TrainingSpec

MOST_OFFERED: Final = 4
"""Sizes that a refusal names for an axis."""


@dataclass(frozen=True)
class Rule:
    """What axes of some roles cut together.

    Attributes:
        roles: whose sizes multiply.
        name: of what they cut, as the request calls it.
        size: of it.
        times: parts that it is cut into besides.
        may_repeat: a multiple of `size` is fine too: each part is then on several devices.
        can_grow: another size of it can be chosen freely.
    """

    roles: tuple[Role, ...]
    name: str
    size: int
    times: int = 1
    may_repeat: bool = False
    can_grow: bool = False

    def allows(self, parts: int) -> bool:
        """Returns whether this many parts are equal."""
        whole = parts * self.times
        return self.size % whole == 0 or (self.may_repeat and whole % self.size == 0)

    def grow(self, parts: int) -> int:
        """Returns the least size, from the one that there is, that this many parts divide."""
        return -(-self.size // (parts * self.times)) * parts * self.times


@dataclass(frozen=True)
class _Cut:
    """The axes of a mesh that are larger than 1, by role."""

    axes: Mapping[Role, Mapping[str, int]]

    def list_wide(self, roles: tuple[Role, ...]) -> list[Role]:
        """Returns those of these roles that have an axis."""
        return [role for role in roles if self.axes.get(role)]

    def measure(self, roles: tuple[Role, ...], **other: int) -> int:
        """Returns into how many parts these roles cut; `other` has sizes that are tried instead."""
        return math.prod(other.get(role, math.prod(self.axes.get(role, {}).values())) for role in roles)

    def write(self, roles: tuple[Role, ...]) -> str:
        """Returns the axes of these roles as people write them: dp:2 × fsdp:4."""
        return " × ".join(f"{name}:{size}" for role in roles for name, size in self.axes.get(role, {}).items())

    def name(self, role: Role) -> str:
        """Returns the axes of a role; where it has several, their product is meant."""
        return " × ".join(self.axes[role])


def check_divides(model: ModelSpec, training: TrainingSpec, mesh_shape: Mapping[str, int]) -> None:
    """Passes over a mesh that cuts the model and its training into equal parts.

    Tensor axes divide heads, KV heads (or are a multiple of them: the KV heads are repeated; in latent attention each
    head has its own), the intermediate sizes of dense layers, experts and shared experts, where there are any, and the
    vocabulary; expert axes the experts; context axes the sequence; pipeline axes the layers; fsdp axes the hidden size;
    and data, fsdp and expert axes with `gradient_accumulation` the batch.

    Args:
        model, training: as the request gives them.
        mesh_shape: axis → size, without -1.

    Raises:
        InvalidRequestError: an axis larger than 1 has a name that says nothing of what it cuts; an expert axis and
            no experts; a sequence longer than the learned positions.
        DoesNotDivideError: an axis does not divide what it cuts; `errors` has each case, and `legal` in it the
            nearest sizes that do.
    """
    cut = _read_mesh(mesh_shape)
    _check_applies(model, training, cut)
    rules = [rule for rule in list_rules(model, training) if rule.times > 1 or any(r in cut.axes for r in rule.roles)]
    broken = [rule for rule in rules if not rule.allows(cut.measure(rule.roles))]
    if broken:
        raise _refuse(broken, rules, cut)


def list_rules(model: ModelSpec, training: TrainingSpec) -> tuple[Rule, ...]:
    """Returns what axes of each role must divide: the rules of a check, and of a search (`search.space`)."""
    batch: tuple[Role, ...] = ("data", "fsdp", "expert")
    pairs = Rule(("tensor",), "num_key_value_heads", model.kv_heads, may_repeat=True)
    return (
        Rule(("tensor",), "num_attention_heads", model.num_attention_heads),
        *(() if model.is_latent else (pairs,)),
        *(Rule(("tensor",), name, size) for name, size in _list_inner_sizes(model).items()),
        Rule(("tensor",), "vocab_size", model.vocab_size, can_grow=True),
        Rule(("expert",), "num_experts", model.num_experts or 1),
        Rule(("context",), "sequence_length", training.sequence_length, can_grow=True),
        Rule(("pipeline",), "num_hidden_layers", model.num_hidden_layers),
        Rule(("fsdp",), "hidden_size", model.hidden_size),
        Rule(batch, "global_batch", training.global_batch, times=training.gradient_accumulation, can_grow=True),
    )


def _list_inner_sizes(model: ModelSpec) -> dict[str, int]:
    """Returns the inner sizes of the blocks that layers have, by the field that says each."""
    sizes = {"intermediate_size": model.intermediate_size} if model.dense_layer_count else {}
    if model.expert_layer_count:
        sizes["moe_intermediate_size" if model.moe_intermediate_size else "intermediate_size"] = model.expert_size
        if model.num_shared_experts and model.shared_expert_intermediate_size:
            sizes["shared_expert_intermediate_size"] = model.shared_size
    return sizes


def _read_mesh(mesh_shape: Mapping[str, int]) -> _Cut:
    axes: dict[Role, dict[str, int]] = {}
    unknown = []
    for name, size in mesh_shape.items():
        role = find_role(name)
        if size > 1 and role is None:
            unknown.append(f"{name}:{size}")
        elif size > 1 and role is not None:
            axes.setdefault(role, {})[name] = size
    if unknown:
        raise _refuse_names(unknown)
    return _Cut(axes)


def _check_applies(model: ModelSpec, training: TrainingSpec, cut: _Cut) -> None:
    if "expert" in cut.axes and not model.num_experts:
        message = f"{cut.write(('expert',))} is for experts, and the model has none; an expert axis needs num_experts"
        raise _refuse_field(
            "mesh", message, f"use fsdp or dp in place of {cut.name('expert')}, or a mixture of experts"
        )
    longest = model.max_position_embeddings
    if model.positions == "learned" and longest is not None and training.sequence_length > longest:
        message = (
            f"sequence_length {training.sequence_length} is more than max_position_embeddings {longest}; "
            f"with learned positions there is no vector for a later one"
        )
        raise _refuse_field("training.sequence_length", message, f"use {longest} or less")


def _refuse(broken: list[Rule], rules: list[Rule], cut: _Cut) -> DoesNotDivideError:
    errors, hints = [], []
    for rule in broken:
        legal = {cut.name(role): values for role, values in _find_legal(rule, rules, cut) if values}
        message = _write_message(rule, cut)
        errors.append({"field": "mesh", "message": message, "legal": {name: list(legal[name]) for name in legal}})
        hints += [f"{name} may be {write_values(values)}" for name, values in legal.items()]
        if rule.can_grow:
            hints.append(f"{rule.name} may be {rule.grow(cut.measure(rule.roles))}")
    more = f" (and {len(broken) - 1} more)" if len(broken) > 1 else ""
    hint = "; ".join(dict.fromkeys(hints)) or f"change {broken[0].name}"
    return DoesNotDivideError(f"{errors[0]['message']}{more}", hint=hint, errors=errors)


def _find_legal(rule: Rule, rules: list[Rule], cut: _Cut) -> Iterator[tuple[Role, tuple[int, ...]]]:
    """Yields for each role that can mend a rule the sizes that do, and that break no other rule.

    The other axes stay as they are; a rule that they break without this role is theirs to mend.
    """
    for role in cut.list_wide(rule.roles):
        own = [each for each in rules if role in each.roles and each.allows(cut.measure(each.roles, **{role: 1}))]
        if rule not in own:
            continue
        divisors = list_divisors(next(each.size for each in own if not each.may_repeat))
        fits = [size for size in divisors if all(each.allows(cut.measure(each.roles, **{role: size})) for each in own)]
        yield role, choose_near(fits, cut.measure((role,)), most=MOST_OFFERED)


def _write_message(rule: Rule, cut: _Cut) -> str:
    times = f"gradient_accumulation {rule.times}" if rule.times > 1 else ""
    axes = " × ".join(filter(None, (cut.write(rule.roles), times)))
    product = f" = {cut.measure(rule.roles) * rule.times}" if " × " in axes else ""
    repeat = ", nor is it a multiple of them" if rule.may_repeat else ""
    return f"{axes}{product} does not divide {rule.name} {rule.size}{repeat}"


def _refuse_names(unknown: list[str]) -> InvalidRequestError:
    known = "; ".join(f"{role}: {', '.join(names)}" for role, names in ROLE_NAMES.items())
    message = f"{', '.join(unknown)} says nothing of what it cuts of the model; an axis is known by its name"
    return _refuse_field("mesh", message, f"known names are {known}")


def _refuse_field(field: str, message: str, hint: str) -> InvalidRequestError:
    return InvalidRequestError(f"{field}: {message}", hint=hint, errors=[{"field": field, "message": message}])
