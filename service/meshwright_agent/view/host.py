"""The machine around the devices, as replies show it. Pure; knows no device."""

from __future__ import annotations

import platform

import meshwright_agent
from meshwright.wire.devices import Cpu, Host, NumaNode, Software
from meshwright_agent.view.sight import Look


def build_host(look: Look) -> Host:
    """Returns the machine; only its name before the probe has answered."""
    if look.facts is None:
        return Host(name=look.host, **look.stamp("passive"))
    machine = look.facts.machine
    return Host(
        name=look.host,
        boot_id=machine.boot_id,
        kernel=machine.kernel,
        operating_system=machine.operating_system,
        container=machine.container,
        **look.passive(),
    )


def build_cpu(look: Look) -> Cpu:
    """Returns processors and memory; all null before the probe has answered."""
    if look.facts is None:
        return Cpu(**look.stamp("passive"))
    cpu = look.facts.cpu
    return Cpu(
        model=cpu.model,
        architecture=cpu.architecture,
        sockets=cpu.sockets,
        cores=cpu.cores,
        threads=cpu.threads,
        usable_threads=cpu.usable_threads,
        memory_bytes=cpu.memory_bytes,
        available_bytes=cpu.available_bytes,
        **look.passive(),
    )


def build_numa_nodes(look: Look) -> tuple[NumaNode, ...]:
    """Returns the NUMA nodes; none before the probe has answered."""
    nodes = look.facts.numa_nodes if look.facts else ()
    return tuple(
        NumaNode(
            node=one.node,
            cpus=one.cpus,
            memory_bytes=one.memory_bytes,
            distances=one.distances,
            **look.passive(),
        )
        for one in nodes
    )


def build_software(look: Look) -> Software:
    """Returns versions: JAX's as the worker said them, the driver's as the probe read them."""
    versions = look.jax.view if look.jax else {}
    driver = look.facts.driver if look.facts else None
    return Software(
        agent=meshwright_agent.__version__,
        python=platform.python_version(),
        jax=versions.get("jax"),
        jaxlib=versions.get("jaxlib"),
        libtpu=versions.get("libtpu"),
        driver=driver.version if driver else None,
        cuda_driver=driver.cuda_version if driver else None,
        **(look.by_jax() if look.jax else look.passive()),
    )
