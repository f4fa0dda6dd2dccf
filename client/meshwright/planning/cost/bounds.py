"""Where a step stops being bound by compute: tokens, sizes of axes and chips, each from two rates and a derivation.

Rule: rooflines of a feed-forward layer, tokens [B, D] × [D, F] × [F, D], of which compute and communication overlap
wholly; attention, latency and what kernels reach are left out, so that a real bound lies above. Figures in, figures
out, each one number or an array over candidates; the rates of compute and of wires are of the same thing, a chip, a
JAX device or a node. Three bounds on tokens are kept apart: of memory, of the links inside, and of the network between.

Source: jax-ml/scaling-book, roofline.md, training.md and applied-training.md at 0819a7d8, gpus.md at 1a55377a.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from meshwright.planning.cost.figures import Figure, give_figure, read_figure
from meshwright.planning.cost.layout import Numbers

SECONDS_A_DAY: Final = 86_400

MATMUL_SOURCE: Final = "jax-ml/scaling-book, roofline.md"
FSDP_SOURCE: Final = "jax-ml/scaling-book, training.md, Fully-Sharded Data Parallelism"
TENSOR_SOURCE: Final = "jax-ml/scaling-book, training.md, Tensor Parallelism"
MIXED_SOURCE: Final = "jax-ml/scaling-book, training.md, Mixed FSDP and Tensor Parallelism"
NETWORK_SOURCE: Final = "jax-ml/scaling-book, training.md, Scaling Between Pods"


def bound_matmul_tokens(flops_per_s: Numbers, memory_bytes_per_s: Numbers, *, weight_bytes: Numbers = 2) -> Figure:
    """Returns from how many tokens a device a matmul is bound by compute, not by reading its weights.

    2·B·D·F FLOP against weight_bytes·D·F bytes: B = weight_bytes · C ÷ (2·M).

    Args:
        flops_per_s: peak of one device, in the matmul's dtype (C).
        memory_bytes_per_s: of its memory (M).
        weight_bytes: of one weight, as it lies in memory.

    Source: roofline.md. For 16-bit weights it is `Chip.critical_batch_tokens`.
    """
    return give_figure(read_figure(weight_bytes) * read_figure(flops_per_s) / (2 * read_figure(memory_bytes_per_s)))


def bound_fsdp_tokens(
    flops_per_s: Numbers,
    bytes_per_s: Numbers,
    *,
    axes: Numbers = 1,
    value_bytes: Numbers = 2,
    groups: Numbers | None = None,
    experts_ratio: Numbers = 1,
) -> Figure:
    """Returns from how many tokens a device FSDP, or plain data parallelism, is bound by compute.

    Forward, a layer does 4·B·D·F FLOP and gathers two matrices of value_bytes·D·F bytes; backward has twice of both.
    So B = value_bytes · C ÷ (2·W·axes): 2,550 on a v5p with one axis, 850 with three.

    Args:
        flops_per_s: peak of one device (C).
        bytes_per_s: of one axis, both ways round its ring; of a GPU, its links to the switch, or, across nodes, the
            node's network together: a node gathers each byte once (W).
        axes: of the torus that the gather goes over at once.
        value_bytes: of one weight on the wire.
        groups: that gather from each other, where they are so few that (groups − 1) ÷ groups counts; None: many.
        experts_ratio: experts of a layer ÷ those that a token goes through; 1: dense.

    Source: training.md, Fully-Sharded Data Parallelism; gpus.md, Data Parallelism (few nodes, experts).
    """
    share = 1.0 if groups is None else (read_figure(groups) - 1) / read_figure(groups)
    intensity = read_figure(flops_per_s) / (read_figure(bytes_per_s) * read_figure(axes))
    return give_figure(read_figure(value_bytes) / 2 * intensity * share * read_figure(experts_ratio))


def bound_tensor_size(
    flops_per_s: Numbers, bytes_per_s: Numbers, inner_size: Numbers, *, axes: Numbers = 1, value_bytes: Numbers = 2
) -> Figure:
    """Returns up to which size, not rounded, a tensor-parallel axis is bound by compute; tokens do not matter.

    Forward, a device does 4·B·D·F ÷ Y FLOP, and gathers and scatters value_bytes·B·D bytes each:
    Y = 2·axes·F·W ÷ (value_bytes·C).

    Args:
        flops_per_s: peak of one device (C).
        bytes_per_s: as in `bound_fsdp_tokens` (W).
        inner_size: of the feed-forward layer (F).
        axes: of the torus that the collectives go over at once.
        value_bytes: of one activation on the wire.

    Source: training.md, Tensor Parallelism; gpus.md, Tensor Parallelism.
    """
    reach = read_figure(axes) * read_figure(inner_size) * read_figure(bytes_per_s)
    return give_figure(2 * reach / (read_figure(value_bytes) * read_figure(flops_per_s)))


def choose_fsdp_size(
    tokens: Numbers, inner_size: Numbers, devices: Numbers, *, fsdp_axes: Numbers = 1, tensor_axes: Numbers = 1
) -> Figure:
    """Returns the FSDP size, not rounded, at which FSDP × tensor parallelism communicates least; the rest is tensor.

    FSDP takes F·X ÷ (N·Mx) and tensor parallelism B ÷ (X·My), in the same unit; the sum is least at
    X = √(B·N·Mx ÷ (F·My)).

    Args:
        tokens: of the whole batch (B).
        inner_size: of the feed-forward layer (F).
        devices: of both axes together (N).
        fsdp_axes, tensor_axes: of the torus that each of both goes over (Mx, My).

    Source: training.md, Mixed FSDP and Tensor Parallelism.
    """
    fsdp = read_figure(tokens) * read_figure(devices) * read_figure(fsdp_axes)
    return give_figure(np.sqrt(fsdp / (read_figure(inner_size) * read_figure(tensor_axes))))


def bound_mixed_tokens(
    flops_per_s: Numbers,
    bytes_per_s: Numbers,
    inner_size: Numbers,
    *,
    fsdp_axes: Numbers = 1,
    tensor_axes: Numbers = 1,
) -> Figure:
    """Returns from how many tokens a device FSDP × tensor parallelism in the best sizes is bound by compute.

    With both sizes as `choose_fsdp_size` has them, B ÷ N = 4·α² ÷ (Mx·My·F), α = C ÷ W of one axis, for 16-bit
    weights and activations.

    Args:
        flops_per_s: peak of one device (C).
        bytes_per_s: of one axis, both ways round its ring (W).
        inner_size: of the feed-forward layer (F).
        fsdp_axes, tensor_axes: of the torus that each of both goes over (Mx, My).

    Source: training.md, Mixed FSDP and Tensor Parallelism.
    """
    intensity = read_figure(flops_per_s) / read_figure(bytes_per_s)
    return give_figure(4 * intensity**2 / (read_figure(fsdp_axes) * read_figure(tensor_axes) * read_figure(inner_size)))


def bound_slice_tokens(slice_flops_per_s: Numbers, network_bytes_per_s: Numbers, *, value_bytes: Numbers = 2) -> Figure:
    """Returns from how many tokens a slice data parallelism between slices is bound by compute.

    Backward, a slice does 8·B·D·F FLOP a layer, and all-reduces two matrices of value_bytes·D·F bytes, each of which
    goes out twice: B = value_bytes · C ÷ (2·W).

    Args:
        slice_flops_per_s: peak of all its devices together (C).
        network_bytes_per_s: of all its NICs together, one way (W).
        value_bytes: of one gradient on the wire.

    Source: training.md, Scaling Between Pods.
    """
    return give_figure(read_figure(value_bytes) / 2 * read_figure(slice_flops_per_s) / read_figure(network_bytes_per_s))


def count_training_flops(parameters: Numbers, tokens: Numbers) -> Figure:
    """Returns the FLOP of training on so many tokens: 6 a parameter and token, attention's scores left out.

    Args:
        parameters: that a token goes through.
        tokens: of the whole training.

    Source: jax-ml/scaling-book, transformers.md: 2 forward and 4 backward.
    """
    return give_figure(6 * read_figure(parameters) * read_figure(tokens))


def time_training(flops: Numbers, devices: Numbers, flops_per_s: Numbers, mfu_ratio: Numbers) -> Figure:
    """Returns the seconds that so many FLOP take at a model FLOP utilisation.

    Args:
        flops: of the whole training.
        devices: that share it.
        flops_per_s: peak of one device.
        mfu_ratio: part of the peak that counts for the model, such as 0.4.

    Source: applied-training.md.
    """
    return give_figure(read_figure(flops) / (read_figure(devices) * read_figure(flops_per_s) * read_figure(mfu_ratio)))


def count_checkpoint_bytes(
    tokens: Numbers, hidden_size: Numbers, layers: Numbers, *, checkpoints: Numbers, value_bytes: Numbers = 2
) -> Figure:
    """Returns the bytes of activations that are kept for the backward pass, over all devices.

    Args:
        tokens: of the batch that is kept at a time.
        hidden_size: elements of one kept activation a token.
        layers: of the model.
        checkpoints: kept activations a layer.
        value_bytes: of one element.

    Source: applied-training.md, the table of its memory question.
    """
    return give_figure(
        read_figure(value_bytes)
        * read_figure(hidden_size)
        * read_figure(tokens)
        * read_figure(checkpoints)
        * read_figure(layers)
    )


def count_least_devices(byte_count: Numbers, memory_bytes: Numbers) -> Figure:
    """Returns how many devices it takes at least to hold so many bytes, in equal parts: a whole number.

    Args:
        byte_count: over all devices.
        memory_bytes: of one.

    Source: applied-training.md; gpus.md, Quiz 5.
    """
    return give_figure(np.ceil(read_figure(byte_count) / read_figure(memory_bytes)))


def round_to_power_of_two(value: Numbers) -> Figure:
    """Returns the power of two that is nearest by ratio: 1618 gives 2048, 13.9 gives 16."""
    return give_figure(2.0 ** np.rint(np.log2(read_figure(value))))


def floor_to_power_of_two(value: Numbers) -> Figure:
    """Returns the largest power of two that is no larger: 11.6 gives 8."""
    return give_figure(2.0 ** np.floor(np.log2(read_figure(value))))


@dataclass(frozen=True)
class Rates:
    """What bounds are reckoned from: one device, or one chip, throughout.

    Attributes:
        flops_per_s: peak, dense, 16-bit.
        memory_bytes_per_s: of its memory.
        axis_bytes_per_s: of one axis of the torus, both ways round its ring; of a GPU, all its links, one way. None:
            no link.
        axes: of the torus; 1 behind a switch.
        network_bytes_per_s: one device's share of the network between slices or nodes; None where nobody says.
        slice_devices: of one slice or node, which the network bound is for.
    """

    flops_per_s: float
    memory_bytes_per_s: float
    axis_bytes_per_s: float | None = None
    axes: int = 1
    network_bytes_per_s: float | None = None
    slice_devices: int = 1


@dataclass(frozen=True)
class Bound:
    """One bound, with how it comes about.

    Attributes:
        name: "memory", "fsdp", "mixed" or "network": tokens from which compute bounds; "tensor": the largest size.
        value: tokens, or the size of the axis, not rounded.
        per: what the tokens are counted for; "axis" for a size.
    """

    name: Literal["memory", "fsdp", "tensor", "mixed", "network"]
    value: float
    per: Literal["device", "slice", "axis"]
    derivation: str
    source: str


def list_bounds(rates: Rates, inner_size: int | None = None) -> tuple[Bound, ...]:
    """Returns all bounds that these rates allow, each with its derivation; those of a model's layer where it is given.

    Args:
        rates: of one device.
        inner_size: of the feed-forward layer, for tensor parallelism.
    """
    return (*_list_inside(rates, inner_size), *_list_network(rates))


def _list_inside(rates: Rates, inner_size: int | None) -> Iterator[Bound]:
    compute, wire, axes = rates.flops_per_s, rates.axis_bytes_per_s, rates.axes
    memory = float(bound_matmul_tokens(compute, rates.memory_bytes_per_s))
    how = f"{compute:.4g} FLOP/s ÷ {rates.memory_bytes_per_s:.4g} bytes/s of memory"
    yield Bound("memory", memory, "device", how, MATMUL_SOURCE)
    if wire is None:
        return
    how = f"{compute:.4g} FLOP/s ÷ ({wire:.4g} bytes/s an axis × {axes})"
    yield Bound("fsdp", float(bound_fsdp_tokens(compute, wire, axes=axes)), "device", how, FSDP_SOURCE)
    if inner_size is None:
        return
    size = float(bound_tensor_size(compute, wire, inner_size))
    how = f"{inner_size} × {wire:.4g} bytes/s ÷ {compute:.4g} FLOP/s, for one axis of the torus or one switch"
    yield Bound("tensor", size, "axis", how, TENSOR_SOURCE)
    if axes > 1:
        mixed = float(bound_mixed_tokens(compute, wire, inner_size, fsdp_axes=axes - 1))
        how = f"4 × ({compute:.4g} FLOP/s ÷ {wire:.4g} bytes/s)² ÷ ({axes - 1} axes for FSDP × {inner_size})"
        yield Bound("mixed", mixed, "device", how, MIXED_SOURCE)


def _list_network(rates: Rates) -> Iterator[Bound]:
    if rates.network_bytes_per_s is None:
        return
    count, share = rates.slice_devices, rates.network_bytes_per_s
    tokens = float(bound_slice_tokens(rates.flops_per_s * count, share * count))
    how = f"{count} × {rates.flops_per_s:.4g} FLOP/s ÷ ({count} × {share:.4g} bytes/s of network)"
    yield Bound("network", tokens, "slice", how, NETWORK_SOURCE)
