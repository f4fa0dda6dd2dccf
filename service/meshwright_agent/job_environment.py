"""The variables that a job on this host should start with.

Rule: what the library would set in the job's own process (`meshwright.environment`), told before it starts.
"""

from __future__ import annotations

from collections.abc import Mapping

from meshwright.environment import DeviceConfiguration, MemoryStrategy, build_environment, format_exports
from meshwright.errors import InvalidRequestError
from meshwright.wire.environment import Environment


def describe_job_environment(
    strategy: str, fraction: float | None, *, base: Mapping[str, str], platform: str | None, cpu_devices: int | None
) -> Environment:
    """Returns the variables, also as `export` lines.

    Args:
        strategy: a MemoryStrategy's value.
        fraction: the share of device memory, in (0, 1]; overrides the strategy's.
        base: the environment that the job starts from: this agent's.
        platform: of the host's devices; None: not known yet.
        cpu_devices: virtual CPU devices in place of accelerators, if the agent is so set.

    Raises:
        InvalidRequestError: a strategy or fraction that is none.
    """
    try:
        config = DeviceConfiguration(memory_strategy=MemoryStrategy(strategy), memory_fraction=fraction)
        variables = build_environment(config, base, platform=platform)
    except ValueError as error:
        hint = "custom needs a memory_fraction in (0, 1]: ?memory_strategy=custom&memory_fraction=0.8"
        raise InvalidRequestError.of("memory_fraction", str(error), hint) from error
    if cpu_devices:
        variables |= {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(cpu_devices)}
    return Environment(
        memory_strategy=strategy,
        memory_fraction=config.resolve_memory_fraction(),
        variables=variables,
        exports=format_exports(variables),
    )
