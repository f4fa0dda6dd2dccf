"""Where a step stops being bound by compute: tokens, and sizes of axes, each from two rates and a derivation.

Rule: rooflines of a feed-forward layer, tokens [B, D] × [D, F] × [F, D], of which compute and communication overlap
wholly; attention, latency and what kernels reach are left out, so that a real bound lies above. Figures in, figures
out, each one number or an array over candidates; the rates of compute and of wires are of the same thing, a chip, a
JAX device or a node.

Source: jax-ml/scaling-book, roofline.md and training.md at 0819a7d8, gpus.md at 1a55377a.
"""

from __future__ import annotations

from typing import Final

from meshwright.planning.cost.collectives import Figure, give_figure, read_figure
from meshwright.planning.cost.layout import Numbers

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
    value_bytes: Numbers = 2,
    experts_ratio: Numbers = 1,
) -> Figure:
    """Returns from how many tokens a device FSDP, or plain data parallelism, is bound by compute.

    Forward, a layer does 4·B·D·F FLOP and gathers two matrices of value_bytes·D·F bytes; backward has twice of both.
    So B = value_bytes · C ÷ (2·W): 2,550 on a v5p with one axis, 850 with three.

    Args:
        flops_per_s: peak of one device (C).
        bytes_per_s: of all axes of the torus that the gather goes over at once, both ways round each ring; of a GPU,
            its links to the switch, or, across nodes, the node's network together: a node gathers each byte once (W).
        value_bytes: of one weight on the wire.
        experts_ratio: experts of a layer ÷ those that a token goes through; 1: dense.

    Source: training.md, Fully-Sharded Data Parallelism; gpus.md, Data Parallelism (experts).
    """
    intensity = read_figure(flops_per_s) / read_figure(bytes_per_s)
    return give_figure(read_figure(value_bytes) / 2 * intensity * read_figure(experts_ratio))


def bound_tensor_size(
    flops_per_s: Numbers, bytes_per_s: Numbers, inner_size: Numbers, *, value_bytes: Numbers = 2
) -> Figure:
    """Returns up to which size, not rounded, a tensor-parallel axis is bound by compute; tokens do not matter.

    Forward, a device does 4·B·D·F ÷ Y FLOP, and gathers and scatters value_bytes·B·D bytes each:
    Y = 2·F·W ÷ (value_bytes·C).

    Args:
        flops_per_s: peak of one device (C).
        bytes_per_s: as in `bound_fsdp_tokens` (W).
        inner_size: of the feed-forward layer (F).
        value_bytes: of one activation on the wire.

    Source: training.md, Tensor Parallelism; gpus.md, Tensor Parallelism.
    """
    reach = read_figure(inner_size) * read_figure(bytes_per_s)
    return give_figure(2 * reach / (read_figure(value_bytes) * read_figure(flops_per_s)))
