"""The roles of mesh axes by their names, the sizes that they must divide, and the nearest sizes that do.

An unknown name has no role, never that of the nearest known name. Names are those of MaxText's base.yml, EasyLM, Flax
and Haiku examples. An axis must divide its dimension; nothing is padded silently. Where an axis does not divide, the
error has the sizes that would, with the other axes unchanged. Independent of devices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Final, Literal, get_args

from meshwright.errors import InvalidRequestError, PlanInfeasibleError
from meshwright.spec import MeshSpec
from meshwright.wire.model import ModelSpec, TrainingSpec

Role = Literal["pipeline", "data", "fsdp", "expert", "context", "tensor"]

ROLES: Final[tuple[Role, ...]] = get_args(Role)
"""Least traffic first: a pipeline sends activations between neighbors once a micro-batch, data parallelism gradients
once a step, sharded data parallelism weights twice a layer, experts and sequences tokens several times a layer, and a
tensor axis activations on the critical path of every matmul. Source: jax-ml/scaling-book, "Training" (bytes a layer: DP
8DF, FSDP 12DF, TP 8BD)."""

ROLE_NAMES: Final[Mapping[Role, tuple[str, ...]]] = {
    "pipeline": ("pp", "pipe", "pipeline", "stage"),
    "data": ("dp", "data", "replica", "batch"),
    "fsdp": ("fsdp", "fsdp_transpose", "shard", "zero"),
    "expert": ("ep", "expert", "experts"),
    "context": ("cp", "sp", "sequence", "seq", "context", "context_autoregressive"),
    "tensor": ("tp", "tensor", "tensor_transpose", "tensor_sequence", "model", "mp", "mdl", "autoregressive"),
}

SEARCH_AXES: Final[Mapping[Role, str]] = {role: names[0] for role, names in ROLE_NAMES.items()}
"""What a search calls the axis of a role."""

BATCH_ROLES: Final[tuple[Role, ...]] = ("data", "fsdp", "expert")
"""Of axes that a batch lies over."""

_ROLES: Final[Mapping[str, Role]] = {name: role for role, names in ROLE_NAMES.items() for name in names}

Axes = tuple[str, ...]


def find_role(name: str) -> Role | None:
    """Returns the role of an axis with this name, in any case; None for an unknown name."""
    return _ROLES.get(name.lower())


def name_axis(name: str) -> str:
    """Returns a search's name of an axis; an unknown name counts as data."""
    return SEARCH_AXES[find_role(name) or "data"]


@dataclass(frozen=True)
class MeshAxes:
    """The axes of a mesh that are larger than 1, the outermost first.

    Attributes:
        sizes: axis → size.
    """

    sizes: Mapping[str, int]

    @classmethod
    def of(cls, mesh_shape: Mapping[str, int]) -> MeshAxes:
        """Returns the axes of a mesh of this shape."""
        return cls({name: size for name, size in mesh_shape.items() if size > 1})

    def find(self, *roles: Role | None) -> Axes:
        """Returns the axes of these roles, role by role; None: the axes of unknown names."""
        return tuple(name for role in roles for name in self.sizes if find_role(name) == role)

    def measure(self, axes: Iterable[str]) -> int:
        """Returns into how many parts these axes divide a dimension."""
        return math.prod(self.sizes[name] for name in axes)

    def count_parts(self, roles: Iterable[Role], instead: Mapping[Role, int] | None = None) -> int:
        """Returns into how many parts the axes of these roles cut; `instead`: sizes to try in place of a role's."""
        return math.prod((instead or {}).get(role, self.measure(self.find(role))) for role in roles)

    def write(self, axes: Iterable[str]) -> str:
        """Returns axes with their sizes, as in "dp:2 × fsdp:4"."""
        return " × ".join(f"{name}:{self.sizes[name]}" for name in axes)

    @property
    def batch(self) -> Axes:
        """Axes that a batch lies over."""
        return self.find(*BATCH_ROLES)

    @property
    def context(self) -> Axes:
        """Axes that a sequence lies over inside attention."""
        return self.find("context")

    @property
    def tensor(self) -> Axes:
        """Axes that heads, feed-forward columns and the vocabulary lie over."""
        return self.find("tensor")

    @property
    def expert(self) -> Axes:
        """Axes that experts lie over."""
        return self.find("expert")

    def shard_weights(self, size: int, *, without: Axes = ()) -> Axes:
        """Returns the axes that split a weight's dimension of `size` between its uses.

        Args:
            size: of the dimension; an axis that does not divide what the axes before it leave is left out.
            without: axes that the weight lies over already.
        """
        chosen: Axes = ()
        for name in self.find("fsdp", "context", "expert"):
            if name not in without and size % self.measure((*chosen, name)) == 0:
                chosen = (*chosen, name)
        return chosen

    def take_tensor(self, size: int) -> Axes:
        """Returns the tensor axes, or an empty result where they do not divide a dimension of `size`."""
        return self.take(self.tensor, size)

    def take(self, axes: Axes, size: int) -> Axes:
        """Returns the axes, or an empty result where they do not divide a dimension of `size`."""
        return axes if size % self.measure(axes) == 0 else ()


# ---- sizes that axes must divide -------------------------------------------------------------------------------------

MOST_OFFERED: Final = 4
"""Sizes that a refusal names for an axis."""


@dataclass(frozen=True)
class AxisRule:
    """What the axes of some roles divide together.

    Attributes:
        name: the divided quantity, as the request names it.
        times: further parts that it is cut into.
        may_repeat: a multiple of `size` is fine too: each part is then on several devices.
        may_differ: parts need not be equal, as stages of a pipeline need not: no part is empty.
        can_grow: another size of it can be chosen freely.
    """

    roles: tuple[Role, ...]
    name: str
    size: int
    times: int = 1
    may_repeat: bool = False
    may_differ: bool = False
    can_grow: bool = False

    def allows(self, parts: int) -> bool:
        """Returns whether there can be this many parts."""
        if self.may_differ:
            return parts <= self.size
        whole = parts * self.times
        return self.size % whole == 0 or (self.may_repeat and whole % self.size == 0)

    def grow(self, parts: int) -> int:
        """Returns the least size, from the current one on, that this number of parts divides."""
        return -(-self.size // (parts * self.times)) * parts * self.times

    def refuse(self, said: str) -> str:
        """Returns why parts, written as "tp:3", are not allowed."""
        if self.may_differ:
            return f"{said} is more than {self.name} {self.size}"
        repeat = ", nor is it a multiple of them" if self.may_repeat else ""
        return f"{said} does not divide {self.name} {self.size}{repeat}"


def check_divides(model: ModelSpec, training: TrainingSpec, mesh_shape: Mapping[str, int]) -> None:
    """Raises PlanInfeasibleError unless a mesh cuts the model and its training into equal parts.

    Tensor axes divide heads, KV heads (or are a multiple of them: the KV heads are repeated; in latent attention each
    head has its own), the intermediate sizes of dense layers, experts and shared experts, where there are any, and the
    vocabulary; expert axes the experts; context axes the sequence; fsdp axes the hidden size; and data, fsdp and expert
    axes with `gradient_accumulation_steps` the batch. A pipeline has no more stages than layers.

    Args:
        model, training: as the request gives them.
        mesh_shape: axis → size, without -1.

    Raises:
        InvalidRequestError: an axis larger than 1 has a name without a role; an expert axis and no experts; a sequence
            longer than the learned positions.
        PlanInfeasibleError: an axis does not divide its dimension; `errors` has each case, and `legal` in it the
            nearest sizes that do.
    """
    axes = MeshAxes.of(mesh_shape)
    _check_roles(model, axes)
    check_sequence(model, training)
    rules = list_rules(model, training)
    broken = [rule for rule in rules if not rule.allows(axes.count_parts(rule.roles))]
    if broken := [rule for rule in broken if rule.times > 1 or axes.find(*rule.roles)]:
        raise _refuse(broken, rules, axes)


def check_sequence(model: ModelSpec, training: TrainingSpec) -> None:
    """Raises InvalidRequestError unless learned positions, where a model has them, are enough for its sequences."""
    longest = model.max_position_embeddings
    if model.positions == "learned" and longest is not None and training.seq_len > longest:
        message = f"seq_len {training.seq_len} is more than max_position_embeddings {longest}: no later one is learned"
        raise _refuse_field("training.seq_len", message, f"use {longest} or less")


def write_mesh(shape: Mapping[str, int]) -> str:
    """Returns a mesh as people read it: "dp:2 × tp:4"."""
    return " × ".join(f"{name}:{size}" for name, size in shape.items())


def list_rules(model: ModelSpec, training: TrainingSpec) -> tuple[AxisRule, ...]:
    """Returns the sizes that axes of each role must divide: the rules of a check and of a search (`candidates`)."""
    pairs = {"num_key_value_heads": model.kv_heads, "num_global_key_value_heads": model.num_global_key_value_heads}
    return (
        AxisRule(("tensor",), "num_attention_heads", model.num_attention_heads),
        *(AxisRule(("tensor",), name, n, may_repeat=True) for name, n in pairs.items() if n and not model.is_latent),
        *(AxisRule(("tensor",), name, size) for name, size in _list_inner_sizes(model).items()),
        AxisRule(("tensor",), "vocab_size", model.vocab_size, can_grow=True),
        AxisRule(("expert",), "num_experts", model.num_experts or 1),
        AxisRule(("context",), "seq_len", training.seq_len, can_grow=True),
        AxisRule(("pipeline",), "num_hidden_layers", model.num_hidden_layers, may_differ=True),
        AxisRule(("fsdp",), "hidden_size", model.hidden_size),
        AxisRule(
            BATCH_ROLES,
            "global_batch_size",
            training.global_batch_size,
            times=training.gradient_accumulation_steps,
            can_grow=True,
        ),
    )


def _list_inner_sizes(model: ModelSpec) -> dict[str, int]:
    """Returns the inner sizes of the blocks that layers have, by their fields."""
    sizes = {"intermediate_size": model.intermediate_size} if model.dense_layer_count else {}
    if model.expert_layer_count:
        sizes["moe_intermediate_size" if model.moe_intermediate_size else "intermediate_size"] = model.expert_size
        if model.num_shared_experts and model.shared_expert_intermediate_size:
            sizes["shared_expert_intermediate_size"] = model.shared_size
    return sizes


def _check_roles(model: ModelSpec, axes: MeshAxes) -> None:
    if unknown := axes.find(None):
        known = "; ".join(f"{role}: {', '.join(names)}" for role, names in ROLE_NAMES.items())
        said = ", ".join(f"{name}:{axes.sizes[name]}" for name in unknown)
        message = f"{said} has no known role in the model; an axis is known by its name"
        raise _refuse_field("mesh", message, f"known names are {known}")
    if axes.expert and not model.num_experts:
        message = f"{axes.write(axes.expert)} is for experts, and the model has none; an expert axis needs num_experts"
        hint = f"use fsdp or dp in place of {' × '.join(axes.expert)}, or a mixture of experts"
        raise _refuse_field("mesh", message, hint)


def _refuse(broken: list[AxisRule], rules: Sequence[AxisRule], axes: MeshAxes) -> PlanInfeasibleError:
    def is_legal(shape: MeshSpec) -> bool:
        parts = MeshAxes.of(dict(shape.axes))
        return all(rule.allows(parts.count_parts(rule.roles)) for rule in rules)

    spec = MeshSpec(tuple(axes.sizes.items()) or (("dp", 1),))
    near = offer_shapes(spec, spec.device_count, is_legal)
    errors, hints = [], [f"use {shape}" for shape in near[:1]]
    for rule in broken:
        legal = {" × ".join(axes.find(role)): values for role, values in _find_legal(rule, rules, axes) if values}
        message = _write_message(rule, axes)
        errors.append({"field": "mesh", "message": message, "legal": {name: list(legal[name]) for name in legal}})
        hints += [f"{name} may be {write_values(values)}" for name, values in legal.items() if not near]
        if rule.can_grow:
            hints.append(f"{rule.name} may be {rule.grow(axes.count_parts(rule.roles))}")
    more = f" (and {len(broken) - 1} more)" if len(broken) > 1 else ""
    hint = "; ".join(dict.fromkeys(hints)) or f"change {broken[0].name}"
    return PlanInfeasibleError(f"{errors[0]['message']}{more}", hint=hint, errors=errors, code="does_not_divide")


def _find_legal(rule: AxisRule, rules: Sequence[AxisRule], axes: MeshAxes) -> Iterator[tuple[Role, tuple[int, ...]]]:
    """Yields for each role that can mend a rule the sizes that do, break no other rule, and need no more devices.

    The other axes stay as they are; a rule that they break without this role is theirs to mend.
    """
    for role in filter(axes.find, rule.roles):
        others = {each: axes.count_parts(each.roles, {role: 1}) for each in rules if role in each.roles}
        own = {each: parts for each, parts in others.items() if each.allows(parts)}
        if rule not in own:
            continue
        most, whole = axes.count_parts((role,)), next(each.size for each in own if not each.may_repeat)
        divisors = [size for size in list_divisors(whole) if size <= most]
        fits = [size for size in divisors if all(each.allows(size * parts) for each, parts in own.items())]
        yield role, choose_near(fits, most, most=MOST_OFFERED)


def _write_message(rule: AxisRule, axes: MeshAxes) -> str:
    times = f"gradient_accumulation_steps {rule.times}" if rule.times > 1 else ""
    said = " × ".join(filter(None, (axes.write(axes.find(*rule.roles)), times)))
    product = f" = {axes.count_parts(rule.roles) * rule.times}" if " × " in said else ""
    return rule.refuse(f"{said}{product}")


def _refuse_field(field: str, message: str, hint: str) -> InvalidRequestError:
    return InvalidRequestError.of(field, f"{field}: {message}", hint, message)


# ---- near sizes -----------------------------------------------------------------------------------------------------


def list_divisors(number: int) -> list[int]:
    """Returns all divisors of a positive number, ascending. Takes √number steps: 2**40 in a tenth of a second."""
    small = [divisor for divisor in range(1, math.isqrt(number) + 1) if number % divisor == 0]
    return small + [number // divisor for divisor in reversed(small) if divisor * divisor != number]


def choose_near(values: Iterable[int], asked: int, *, most: int = 3) -> tuple[int, ...]:
    """Returns the values nearest to `asked` by ratio, ascending; all are positive."""
    nearest = sorted(set(values) - {asked}, key=lambda value: (round(abs(math.log(value / asked)), 9), -value))
    return tuple(sorted(nearest[:most]))


def write_values(values: Sequence[int]) -> str:
    """Returns one or more values as a sentence offers them: 2, 4 or 8."""
    return " or ".join(filter(None, (", ".join(map(str, values[:-1])), str(values[-1]))))


def search_shapes(spec: MeshSpec, device_count: int, *, most: int = 2) -> tuple[MeshSpec, ...]:
    """Returns shapes with the same axes for exactly `device_count` devices, the nearest first.

    Near means: few axes change, and by small factors. An axis that is -1 in `spec` may take any size. Worked
    example: dp:3,tp:2 on 8 devices gives dp:4,tp:2 first.
    """
    if device_count < 1:
        return ()
    found = {shape for shape in _yield_shapes(spec.sizes, device_count) if math.prod(shape) == device_count}
    nearest = sorted(found, key=lambda shape: _measure_distance(spec.sizes, shape))
    return tuple(MeshSpec(tuple(zip(spec.names, shape, strict=True))) for shape in nearest[:most])


TENSOR_MOST: Final = 8
"""Parts of a tensor axis that are offered: devices of a host whose links are fast."""


def offer_shapes(spec: MeshSpec, device_count: int, is_legal: Callable[[MeshSpec], bool]) -> list[MeshSpec]:
    """Returns the legal shapes of so many devices, the nearest first: with the same axes, then with fsdp, dp and tp
    too; at last those with tensor axes over more devices than a host has."""
    roles = {find_role(name) for name in spec.names}
    outer, inner = [name for name in ("fsdp", "dp") if find_role(name) not in roles], ["tp"] * ("tensor" not in roles)
    more = MeshSpec((*((name, 1) for name in outer), *spec.axes, *((name, 1) for name in inner)))
    near = (*search_shapes(spec, device_count, most=64), *search_shapes(more, device_count, most=64))
    axes = (tuple((name, size) for name, size in shape if size > 1 or name in spec.names) for shape in near)
    legal = [MeshSpec(each) for each in dict.fromkeys(axes) if is_legal(MeshSpec(each))]
    return sorted(legal, key=lambda shape: MeshAxes.of(dict(shape.axes)).count_parts(["tensor"]) > TENSOR_MOST)


def _measure_distance(asked: tuple[int, ...], shape: tuple[int, ...]) -> tuple[float, int, tuple[int, ...]]:
    factors = [abs(math.log(b / a)) for a, b in zip(asked, shape, strict=True) if a != -1]
    return round(sum(factors), 9), sum(factor > 0 for factor in factors), tuple(-size for size in shape)


def _yield_shapes(sizes: tuple[int, ...], device_count: int) -> Iterator[tuple[int, ...]]:
    """Yields candidates: all but one or two axes kept; and inner axes cut down to divisors."""
    divisors = list_divisors(device_count)
    axes = range(len(sizes))
    known = [max(size, 1) for size in sizes]
    for axis in axes:
        rest = math.prod(known[:axis] + known[axis + 1 :])
        yield (*known[:axis], max(device_count // rest, 1), *known[axis + 1 :])
    for one, other in permutations(axes, 2):
        for size in divisors:
            shape = list(known)
            shape[one] = size
            rest = math.prod(shape[:other] + shape[other + 1 :])
            shape[other] = max(device_count // rest, 1)
            yield tuple(shape)
    shape, left = [1] * len(sizes), device_count
    for axis in reversed(axes):
        shape[axis] = left if axis == 0 else max(d for d in divisors if left % d == 0 and d <= known[axis])
        left //= shape[axis]
    yield tuple(shape)
