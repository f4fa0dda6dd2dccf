"""Builds the environment that JAX starts with from a device configuration, shared by agent, CLI and trainer.

Rule: pure. Nothing here reads or writes `os.environ`; the existing environment is the argument `base`. Independent of
jax: the variables take effect only in a process whose JAX backend has not started yet.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from numbers import Real
from typing import Final

MEM_FRACTION: Final = "XLA_PYTHON_CLIENT_MEM_FRACTION"
NEW_MEM_FRACTION: Final = "XLA_CLIENT_MEM_FRACTION"
"""The newer name of the same. JAX refuses to start with both (jaxlib/xla_client.py,
generate_pjrt_gpu_plugin_options), so where this one is set already it gets the
value, and the older one is blanked."""

PREALLOCATE: Final = "XLA_PYTHON_CLIENT_PREALLOCATE"
XLA_FLAGS: Final = "XLA_FLAGS"
ENABLE_X64: Final = "JAX_ENABLE_X64"
DISABLE_JIT: Final = "JAX_DISABLE_JIT"

_JAX_PLATFORM: Final = {"gpu": "cuda"}
"""JAX expands "gpu" to cuda, rocm and oneapi, and fails on a platform that is not installed
(jax/_src/xla_bridge.py)."""

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FLAG: Final = re.compile(r"""(-[-\w]*)(?:="(?:\\.|[^"\\])*"|='[^']*'|\S*)(?=\s|$)""", re.ASCII)


class MemoryStrategy(Enum):
    """How much of a GPU's memory JAX may take. CUSTOM: the configuration's own `memory_fraction`."""

    CONSERVATIVE = "conservative"
    BALANCED = "balanced"
    AGGRESSIVE = "aggressive"
    CUSTOM = "custom"

    @property
    def fraction(self) -> float | None:
        """The share of device memory, in (0, 1]; None for CUSTOM."""
        return _FRACTIONS.get(self)


_FRACTIONS: Final[Mapping[MemoryStrategy, float]] = {
    MemoryStrategy.CONSERVATIVE: 0.60,
    MemoryStrategy.BALANCED: 0.75,
    MemoryStrategy.AGGRESSIVE: 0.90,
}


class _StrategyFraction(float):
    """A memory fraction that comes from the strategy. Given to a configuration, it counts as not given.

    `dataclasses.replace` and `asdict` pass on what they read, also where nothing was given.
    """


@dataclass
class DeviceConfiguration:
    """How JAX uses the devices. Mutable; checked at construction and again at each use.

    Attributes:
        memory_strategy: a MemoryStrategy, or its value as a word.
        memory_fraction: a share of device memory in (0, 1]; where given, it overrides the strategy's. Otherwise it has
            the strategy's value and follows it, also in copies; None: the strategy has none.
        enable_x64: True turns 64-bit types on; False leaves JAX's own default or JAX_ENABLE_X64.
        enable_jit: False runs operations one by one, for debugging; True leaves JAX_DISABLE_JIT.
        platform_priority: the order of preference for the default device; does not hide devices or set a variable.
        environment_variables: the caller's own variables. They override those of the fields above, except that
            XLA_FLAGS is merged with the existing flags.

    Raises:
        ValueError: a field has an invalid value.
    """

    memory_strategy: MemoryStrategy = MemoryStrategy.BALANCED
    memory_fraction: float | None = None
    enable_x64: bool = False
    enable_jit: bool = True
    platform_priority: Sequence[str] | None = None
    environment_variables: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Raises ValueError unless all fields are valid, also those set after construction.

        Raises:
            ValueError: the message has the field, its value, the rule and a value that works.
        """
        self.resolve_memory_fraction()
        for name in ("enable_x64", "enable_jit"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} is {getattr(self, name)!r}; it is True or False")
        _check_priority(self.platform_priority)
        if not isinstance(self.environment_variables, Mapping):
            raise ValueError(
                f"environment_variables is {self.environment_variables!r}; it is a mapping of names to text, such as "
                f'{{"NCCL_DEBUG": "WARN"}}'
            )
        _check_variables(self.environment_variables)
        _check_flags(self.environment_variables.get(XLA_FLAGS, ""))

    def resolve_memory_fraction(self) -> float:
        """Returns the share of device memory that JAX may take, in (0, 1].

        Raises:
            ValueError: the strategy does not exist, a fraction outside (0, 1], or CUSTOM without one.
        """
        _parse_strategy(self.memory_strategy)
        fraction = self.memory_fraction
        if fraction is None:
            raise ValueError("memory_strategy is custom and memory_fraction is None; give one in (0, 1], such as 0.8")
        if isinstance(fraction, bool) or not isinstance(fraction, Real) or not 0 < float(fraction) <= 1:
            raise ValueError(f"memory_fraction is {fraction!r}; it must be a number in (0, 1], such as 0.8")
        return float(fraction)


def _read_fraction(config: DeviceConfiguration) -> float | None:
    given: float | None = vars(config).get("memory_fraction")
    if given is not None:
        return given
    try:
        fraction = _parse_strategy(config.memory_strategy).fraction
    except ValueError:
        return None
    return None if fraction is None else _StrategyFraction(fraction)


def _write_fraction(config: DeviceConfiguration, value: float | None) -> None:
    vars(config)["memory_fraction"] = None if isinstance(value, _StrategyFraction) else value


# After the class is made: inside it the property would be the field's default.
DeviceConfiguration.memory_fraction = property(_read_fraction, _write_fraction)  # type: ignore[assignment]


def build_environment(
    config: DeviceConfiguration, base: Mapping[str, str], *, platform: str | None = None
) -> dict[str, str]:
    """Returns the variables to set for a JAX process, and only those: name to value, in a fixed order.

    JAX_ENABLE_X64 and JAX_DISABLE_JIT are among them only where the configuration differs from JAX's default, so that a
    default never replaces the user's setting.

    Args:
        config: the configuration; checked again here.
        base: the existing environment, such as `os.environ`. Its XLA_FLAGS are kept (a flag on both sides takes the
            configuration's value). It also decides the name of the variable for the memory fraction.
        platform: "tpu" leaves out the memory fraction, which only GPUs use; None: not known.

    Raises:
        ValueError: the configuration is not valid, or its XLA_FLAGS cannot be merged since those of `base` name a file.
    """
    config.check()
    own = dict(config.environment_variables)
    is_read = platform != "tpu" or not own.keys().isdisjoint((MEM_FRACTION, NEW_MEM_FRACTION))
    fraction = _name_mem_fraction(repr(config.resolve_memory_fraction()), own, {**base, **own}) if is_read else {}
    variables = {
        **fraction,
        **({ENABLE_X64: "true"} if config.enable_x64 else {}),
        **({} if config.enable_jit else {DISABLE_JIT: "true"}),
        **own,
        **fraction,
    }
    if XLA_FLAGS in own:
        variables[XLA_FLAGS] = _merge_flags(base.get(XLA_FLAGS, ""), own[XLA_FLAGS])
    return variables


def build_worker_environment(
    config: DeviceConfiguration, base: Mapping[str, str], *, platform: str | None = None, cpu_devices: int | None = None
) -> dict[str, str]:
    """Returns the complete environment of the agent's device worker.

    That is `base` with the configuration's variables. Memory is taken as needed (`XLA_PYTHON_CLIENT_PREALLOCATE=false`)
    unless `base` or the configuration sets it, since the worker shares the devices with jobs. Its benches measure
    compiled programs in 32 bits, so that only the configuration can change JAX_ENABLE_X64 and JAX_DISABLE_JIT.

    Args:
        config: the configuration.
        base: the agent's own environment.
        platform: "cpu", "gpu", "tpu" or any value of JAX_PLATFORMS; None leaves it as in `base`.
        cpu_devices: the number of (virtual) CPU devices that JAX shows; None leaves it as in `base`.

    Raises:
        ValueError: as `build_environment`, or `cpu_devices` is below 1.
    """
    if cpu_devices is not None and cpu_devices < 1:
        raise ValueError(f"cpu_devices is {cpu_devices}; JAX needs at least 1 CPU device, such as 8")
    fixed = {ENABLE_X64: "false", DISABLE_JIT: "false"}
    environment = {PREALLOCATE: "false", **base, **fixed, **build_environment(config, base)}
    if platform is not None:
        environment["JAX_PLATFORMS"] = _JAX_PLATFORM.get(platform, platform)
    if cpu_devices is not None:
        environment["JAX_NUM_CPU_DEVICES"] = str(cpu_devices)
    return environment


def format_exports(variables: Mapping[str, str]) -> tuple[str, ...]:
    """Returns one line `export NAME=value` a variable, quoted for a POSIX shell, in the mapping's order.

    Raises:
        ValueError: a name is not a shell name, or a value is not valid in an environment.
    """
    _check_variables(variables)
    return tuple(f"export {name}={shlex.quote(value)}" for name, value in variables.items())


def _parse_strategy(value: object) -> MemoryStrategy:
    try:
        return MemoryStrategy(value)
    except ValueError:
        words = ", ".join(strategy.value for strategy in MemoryStrategy)
        raise ValueError(f"memory_strategy is {value!r}; it is one of {words}") from None


def _check_priority(value: object) -> None:
    if value is None:
        return
    if isinstance(value, str) or not isinstance(value, Sequence) or not all(isinstance(word, str) for word in value):
        raise ValueError(f'platform_priority is {value!r}; it is a list of platforms, such as ["gpu", "cpu"], or None')


def _check_variables(variables: Mapping[str, str]) -> None:
    for name, value in variables.items():
        if not (isinstance(name, str) and _NAME.fullmatch(name)):
            raise ValueError(f"{name!r} is no environment variable; a name is letters, digits and _, such as MY_FLAG")
        if not isinstance(value, str) or "\0" in value:
            raise ValueError(f"the variable {name} is {value!r}; a value is text without NUL, such as '1'")


def _name_mem_fraction(fraction: str, own: Mapping[str, str], present: Mapping[str, str]) -> dict[str, str]:
    """Returns the fraction, or the caller's own, under the one name that JAX then finds."""
    value = own.get(NEW_MEM_FRACTION) or own.get(MEM_FRACTION) or fraction
    if not present.get(NEW_MEM_FRACTION):
        return {MEM_FRACTION: value}
    blanked = {MEM_FRACTION: ""} if present.get(MEM_FRACTION) else {}
    return {NEW_MEM_FRACTION: value, **blanked}


def _check_flags(text: str) -> None:
    _, rest = _split_flags(text)
    if rest:
        raise ValueError(
            f"XLA_FLAGS holds {rest.split()[0]!r}, which is no flag: XLA ignores everything from there on; "
            "write flags as --name=value, separated by blanks"
        )


def _merge_flags(present: str, own: str) -> str:
    """Returns both sets of flags as one text; for a flag in both, the own value."""
    flags, rest = _split_flags(present)
    if rest and not flags:
        raise ValueError(
            f"XLA_FLAGS is the file {rest.strip()!r} in the environment, and the configuration has flags "
            "of its own: the two cannot be merged; put the file's flags into XLA_FLAGS, as in --xla_dump_to=d"
        )
    added, _ = _split_flags(own)
    names = {name for name, _ in added}
    return " ".join([text for name, text in flags if name not in names] + [text for _, text in added])


def _split_flags(text: str) -> tuple[list[tuple[str, str]], str]:
    """Returns (name, text) of each flag, and the rest after the point where XLA stops reading.

    Source: xla/parse_flags_from_env.cc: blanks separate flags; a value may be quoted; reading stops at the
    first word that does not begin with "-"; a text that does not begin with "-" is the name of a file.
    """
    flags, rest = [], text.lstrip()
    while match := _FLAG.match(rest):
        flags.append((match[1].lstrip("-"), match[0]))
        rest = rest[match.end() :].lstrip()
    return flags, rest
