"""One question on several targets: the best plan of each, and how they compare.

Rule: each target is asked as if alone, so that its answer is the one that it would get; what is wrong with one is told
beside the others. By price where each that has a plan has one, else by the time of a step, which is of the same batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from meshwright.errors import (
    DevicesUnusedError,
    DoesNotDivideError,
    InvalidRequestError,
    PlanInfeasibleError,
    RequestError,
)
from meshwright.topology.targets import read_target
from meshwright.wire.cost import SearchSpec
from meshwright.wire.mesh import UNKNOWN_TARGET, ComparedTarget, Plan, PlanRequest, Plans

_OF_ONE: Final = (PlanInfeasibleError, DoesNotDivideError, DevicesUnusedError)
"""What may be wrong with one target and not with another."""


def compare_targets(request: PlanRequest, answer: Callable[[PlanRequest], Plans]) -> Plans:
    """Returns the best plan of each target, best first, and what each came to.

    Args:
        request: has `targets`.
        answer: answers a request on one target.

    Raises:
        InvalidRequestError: a target is none, or a price is of none of them; or as `answer`.
    """
    targets = request.targets or ()
    prices = _read_prices(request)
    asked = [(target, _ask(request, target, prices, answer)) for target in targets]
    made = {target: found.plans[0] for target, found in asked if isinstance(found, Plans) and found.plans}
    order = sorted(made, key=_sort_by(tuple(made.values()), made))
    best = made[order[0]] if order else None
    compared = [_compare(target, found, best) for target, found in asked]
    compared.sort(key=lambda each: order.index(each.target) if each.target in made else len(order))
    named = [each.model_copy(update={"target": _name(each.target, made)}) for each in compared]
    warnings = tuple(
        dict.fromkeys(notice for _, found in asked if isinstance(found, Plans) for notice in found.warnings)
    )
    return Plans(plans=tuple(made[target] for target in order), comparison=tuple(named), warnings=warnings)


def _read_prices(request: PlanRequest) -> Mapping[str, float]:
    """Returns the price of each target: one for all, or by target.

    Raises:
        InvalidRequestError: a price is of no target that is compared.
    """
    price = request.search.price_per_device_hour if request.search else None
    targets = request.targets or ()
    if not isinstance(price, dict):
        return {} if price is None else dict.fromkeys(targets, float(price))
    unknown = next((name for name in price if name not in targets), None)
    if unknown is not None:
        message = f"price_per_device_hour has {unknown[:80]!r}, which is none of the targets {', '.join(targets)}"
        errors = [{"field": "search.price_per_device_hour", "message": message}]
        raise InvalidRequestError(message, hint="name targets there as they are named in targets", errors=errors)
    return {name: float(value) for name, value in price.items()}


def _ask(
    request: PlanRequest, target: str, prices: Mapping[str, float], answer: Callable[[PlanRequest], Plans]
) -> Plans | RequestError:
    search = request.search
    if search is not None or target in prices:
        search = (search or SearchSpec()).model_copy(update={"price_per_device_hour": prices.get(target)})
    alone = {"targets": None, "target": target, "search": search, "top": 1}
    try:
        return answer(request.model_copy(update=alone))
    except _OF_ONE as error:
        return error


def _sort_by(plans: tuple[Plan, ...], made: Mapping[str, Plan]) -> Callable[[str], float]:
    if plans and all(plan.price_per_million_tokens is not None for plan in plans):
        return lambda target: made[target].price_per_million_tokens or 0.0
    return lambda target: _read_step(made[target])


def _read_step(plan: Plan) -> float:
    return plan.step_time.total_s if plan.step_time else 0.0


def _compare(target: str, found: Plans | RequestError, best: Plan | None) -> ComparedTarget:
    if not isinstance(found, Plans):
        reason = found.code if _is_known(target) else UNKNOWN_TARGET
        hint = f"; {found.hint}" if found.hint else ""
        return ComparedTarget(target=target, reason=reason, message=f"{found.detail}{hint}")
    if not found.plans:
        message = "; ".join(notice.message for notice in found.warnings)
        return ComparedTarget(target=target, reason="nothing_fits", message=message, rejected=found.rejected)
    assert best is not None
    plan = found.plans[0]
    told: dict[str, Any] = {
        "device_count": sum(granule.device_count for granule in plan.granules) or None,
        "fingerprint": plan.fingerprint,
        "tokens_per_s": plan.tokens_per_s,
        "mfu_ratio": plan.mfu_ratio,
        "price_per_million_tokens": plan.price_per_million_tokens,
        "rejected": found.rejected,
        "message": _tell(plan, best),
    }
    if plan.step_time is not None:
        step = plan.step_time
        told |= {"step_s": step.total_s, "low_s": step.low_s, "high_s": step.high_s}
    return ComparedTarget(target=target, **told)


def _is_known(target: str) -> bool:
    try:
        read_target(target)
    except PlanInfeasibleError:
        return False
    return True


def _tell(plan: Plan, best: Plan) -> str:
    """Returns how a plan compares with the best: its step, its price, and whether the model can tell them apart."""
    if plan.step_time is None or best.step_time is None:
        return ""
    if plan is best:
        return "the best" if plan.price_per_million_tokens is None else "the least price of tokens"
    ratio = plan.step_time.total_s / best.step_time.total_s
    said = [f"{ratio:.2f} times the step of {best.target}"]
    if plan.price_per_million_tokens and best.price_per_million_tokens:
        times = plan.price_per_million_tokens / best.price_per_million_tokens
        said.append(f"{times:.2f} times its price of tokens")
    if _overlap(plan, best):
        said.append("their intervals overlap, so that a run may turn them round")
    return "; ".join(said)


def _overlap(plan: Plan, best: Plan) -> bool:
    one, other = plan.step_time, best.step_time
    if one is None or other is None or None in (one.low_s, one.high_s, other.low_s, other.high_s):
        return False
    return bool((one.low_s or 0) <= (other.high_s or 0) and (other.low_s or 0) <= (one.high_s or 0))


def _name(target: str, made: Mapping[str, Plan]) -> str:
    return (made[target].target or target) if target in made else target
