"""The environment that JAX starts with: applies a configuration, or reports why it has no effect.

Rule: all or nothing. Before JAX's backend starts, every variable is set, in `os.environ` and, since JAX reads its own
options when it is imported, in `jax.config`. After that nothing is changed, and the differences are named.

Limit: the environment that the backend read is not known, since JAX does not store it. The last environment applied
here is assumed, otherwise the current `os.environ`. JAX's own options are read from `jax.config`.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import jax

from meshwright.environment import (
    DISABLE_JIT,
    ENABLE_X64,
    MEM_FRACTION,
    NEW_MEM_FRACTION,
    PREALLOCATE,
    XLA_FLAGS,
    DeviceConfiguration,
    MemoryStrategy,
    build_environment,
    format_exports,
)

_DEFAULTS: Final[Mapping[str, str]] = {PREALLOCATE: "true", "XLA_PYTHON_CLIENT_ALLOCATOR": "default"}
"""What XLA does where the variable is not set. Source: jaxlib/xla_client.py, xla/pjrt/gpu/gpu_helpers.h."""

DEFAULT_FRACTION: Final = 0.75
"""The memory fraction where no variable is set. Source: xla/pjrt/gpu/gpu_helpers.h, GpuAllocatorConfig."""

_TRUE: Final = frozenset({"y", "yes", "t", "true", "on", "1"})
_FALSE: Final = frozenset({"n", "no", "f", "false", "off", "0"})
"""As jax/_src/config.py reads them from the environment."""

_applied: Final[dict[str, str]] = {}
"""The variables that were applied here before the backend's start, as they were then."""

_switched: Final[set[str]] = set()
"""Which of JAX_ENABLE_X64 and JAX_DISABLE_JIT a configuration turned on here; the next one that does not request it
turns it off again. What the user turned on stays."""


@dataclass(frozen=True)
class Difference:
    """A variable whose wanted value differs from the value in force; `present` None: it is not set."""

    name: str
    wanted: str
    present: str | None

    def __str__(self) -> str:
        return f"{self.name}={self.wanted} (in force: {'not set' if self.present is None else self.present})"


def has_backend_started() -> bool:
    """Returns whether a JAX backend runs in this process."""
    from jax._src import xla_bridge  # jax has no public name for this question, which must not start a backend

    return xla_bridge.backends_are_initialized()


def is_environment_read() -> bool:
    """Returns whether it is too late for variables: a backend runs, or plugins have been registered for one.

    CUDA's plugin takes the memory fraction when it is registered, which compiling for a topology does too, and
    keeps it when backends are cleared. XLA reads its flags once.
    """
    from jax._src import xla_bridge  # as above

    return has_backend_started() or bool(getattr(xla_bridge, "_plugins_registered", False))


def read_configuration(environ: Mapping[str, str]) -> DeviceConfiguration:
    """Returns the configuration that is in force, or will be if JAX starts now: applying it changes nothing.

    A memory fraction that no configuration can hold (4.0, for unified memory) remains the caller's variable.
    """
    name, text = _find_fraction(_read_environment(environ))
    options = jax.config.values
    config = DeviceConfiguration(enable_x64=options["jax_enable_x64"], enable_jit=not options["jax_disable_jit"])
    fraction = _parse_fraction(text)
    known = {strategy.fraction: strategy for strategy in MemoryStrategy if strategy.fraction}
    if fraction in known:
        return replace(config, memory_strategy=known[fraction])
    if fraction is not None and 0 < fraction <= 1:
        return replace(config, memory_strategy=MemoryStrategy.CUSTOM, memory_fraction=fraction)
    return replace(config, environment_variables={name: text})


def read_memory_fraction(config: DeviceConfiguration, environ: Mapping[str, str]) -> float | str:
    """Returns the memory fraction of a configuration; text where its own variable is not a number."""
    present = _read_environment(environ)
    _, text = _find_fraction({**present, **build_environment(config, present)})
    fraction = _parse_fraction(text)
    return str(text) if fraction is None else fraction


def apply_configuration(config: DeviceConfiguration, environ: MutableMapping[str, str]) -> tuple[Difference, ...]:
    """Applies a configuration; returns the differences that have no effect because the backend has started.

    Raises:
        ValueError: the configuration is wrong, or has a variable with a value that JAX's option cannot have; then
            nothing was changed.
    """
    present = _read_environment(environ)
    wanted = {**dict.fromkeys(sorted(_switched), "false"), **build_environment(config, present)}
    options = {name: _parse_option(name, text) for name, text in wanted.items() if _find_option(name) is not None}
    if is_environment_read():
        return find_differences(wanted, present)
    changed = {name: value for name, value in options.items() if not _is_in_force(name, value)}
    _update_options(changed)
    for name in changed.keys() & {ENABLE_X64, DISABLE_JIT}:
        (_switched.add if changed[name] else _switched.discard)(name)
    environ.update(wanted)
    _applied.clear()
    _applied.update(wanted)
    return ()


def find_differences(wanted: Mapping[str, str], present: Mapping[str, str]) -> tuple[Difference, ...]:
    """Returns the variables whose value differs from the value in force, in their order."""
    found = [_compare(name, text, {**present, **wanted}, present) for name, text in wanted.items()]
    return tuple(difference for difference in found if difference is not None)


def describe_differences(differences: Sequence[Difference]) -> str:
    """Returns the sentence that names the values without effect, and what to do."""
    names = ", ".join(str(difference) for difference in differences)
    exports = "; ".join(format_exports({difference.name: difference.wanted for difference in differences}))
    return (
        f"could not take effect: {names}; JAX's backend has already started in this process and read them then, so "
        f"nothing was changed; set them before the first use of jax: call get_device_manager(config) first, or start "
        f"the process with them, as in {exports}"
    )


def _read_environment(environ: Mapping[str, str]) -> dict[str, str]:
    return {**environ, **_applied} if is_environment_read() else dict(environ)


def _compare(name: str, text: str, after: Mapping[str, str], before: Mapping[str, str]) -> Difference | None:
    difference = Difference(name, text, before.get(name))
    if name in (MEM_FRACTION, NEW_MEM_FRACTION):
        (carrier, new), (_, old) = _find_fraction(after), _find_fraction(before)
        return difference if name == carrier and _normalise(new) != _normalise(old) else None
    if _find_option(name) is not None:
        option = jax.config.values[name.lower()]
        return None if _is_in_force(name, _parse_option(name, text)) else Difference(name, text, _to_word(option))
    if name == XLA_FLAGS:
        return difference if sorted(text.split()) != sorted(before.get(name, "").split()) else None
    return difference if text != before.get(name, _DEFAULTS.get(name)) else None


# ---- the memory fraction, which has two names ----


def _find_fraction(environ: Mapping[str, str]) -> tuple[str, str]:
    """Returns the variable from which JAX reads the fraction, and its text."""
    name = NEW_MEM_FRACTION if environ.get(NEW_MEM_FRACTION) else MEM_FRACTION
    return name, environ.get(name) or repr(DEFAULT_FRACTION)


def _parse_fraction(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _normalise(text: str) -> object:
    fraction = _parse_fraction(text)
    return text if fraction is None else fraction


# ---- JAX's own options ----


def _find_option(variable: str) -> str | None:
    """Returns the option of `jax.config` that JAX reads from this variable when it is imported; None for others."""
    return variable.lower() if variable.startswith("JAX_") and variable.lower() in jax.config.values else None


def _parse_option(variable: str, text: str) -> object:
    kind = jax.config.meta[variable.lower()][0]
    word = text.strip().lower()
    try:
        if kind is bool:
            return {**dict.fromkeys(_TRUE, True), **dict.fromkeys(_FALSE, False)}[word]
        return kind(text) if kind in (int, float) else text
    except (KeyError, ValueError):
        example = {bool: "true", int: "8", float: "0.5"}[kind]
        rule = f"JAX reads it as a {kind.__name__}"
        raise ValueError(f"environment_variables has {variable}={text!r}; {rule}, such as {example}") from None


def _is_in_force(variable: str, value: object) -> bool:
    present: Any = jax.config.values[variable.lower()]
    return _to_word(present) == _to_word(value)


def _to_word(value: Any) -> str:
    """Returns an option's value as text: for an enumeration its word, for None the empty text, as in JAX."""
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(getattr(value, "value", value))


def _update_options(values: Mapping[str, object]) -> None:
    before = {name: jax.config.values[name.lower()] for name in values}
    try:
        for name, value in values.items():
            jax.config.update(name.lower(), value)
    except (ValueError, RuntimeError, TypeError) as error:
        for changed, present in before.items():
            jax.config.update(changed.lower(), present)
        raise ValueError(f"environment_variables has {name}={value!r}, and JAX refuses it: {error}") from error
