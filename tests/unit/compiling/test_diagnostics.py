"""What the compiler says on stderr: caught, passed on, and read. Its lines here are XLA's own."""

from __future__ import annotations

import subprocess
import sys

import pytest

from meshwright.compiling.report import read_diagnostics

REMAT_JAXLIB_0_10 = (
    "W1121 19:07:38.179729    2723 spmd_partitioner.cc:656] [SPMD] Involuntary full rematerialization. The compiler "
    "cannot go from sharding {devices=[8,1,1]<=[8]} to {devices=[1,4,2]<=[2,4]T(1,0)} efficiently for HLO operation "
    "%mul.1 = f32[3,64,64]{2,1,0} multiply(%sharding_constraint.0, %mul.0), sharding={devices=[8,1,1]<=[8]}, "
    'metadata={op_name="jit(f)/mul" stack_frame_id=4}. As the last resort, SPMD will replicate the tensor and then '
    "partition it to obtain the target sharding, which is inefficient. This issue will be fixed by Shardy partitioner "
    "in the future, which is tracked in b/433785288. Contact Shardy or XLA team for help."
)
REMAT_JAXLIB_0_12 = REMAT_JAXLIB_0_10.replace(
    "{devices=[8,1,1]<=[8]}", "{mesh['a'=2,'b'=4], [{'a', 'b'}, {}, {}]}"
).replace("{devices=[1,4,2]<=[2,4]T(1,0)}", "{mesh['a'=2,'b'=4], [{}, {'b'}, {'a'}]}")
REMAT_OLD = (
    "E0000 [spmd] Involuntary full rematerialization. The compiler was not able to go from sharding "
    "{devices=[2,1,4]<=[8] last_tile_dim_replicate} to {replicated} without doing a full rematerialization of the "
    "tensor for HLO operation: %add.3 = (f32[3], s32[]) custom-call(%a), "
    'metadata={op_name="jit(f)/add" source_file="/home/me/train.py" source_line=41}. You probably want to enrich the '
    "sharding annotations to prevent this from happening."
)
IDLE = (
    "I0000 00:00:1795288050.408961    2512 cudart_stub.cc:31] Could not find cuda drivers on your machine",
    "E1121 slow_operation_alarm.cc:73] ******************************* Very slow compile? If you want to file a bug",
    "W1121 shardy_xla_pass.cc:378] Module contains sdy shardings or meshes in frontend_attributes",
    "",
)


@pytest.mark.parametrize(("line", "said"), [
    (REMAT_JAXLIB_0_10, ["mul.1", "jit(f)/mul", "from {devices=[8,1,1]<=[8]} to {devices=[1,4,2]<=[2,4]T(1,0)}"]),
    (REMAT_JAXLIB_0_12,
     ["mul.1", "from {mesh['a'=2,'b'=4], [{'a', 'b'}, {}, {}]} to {mesh['a'=2,'b'=4], [{}, {'b'}, {'a'}]}"]),
    (
        REMAT_OLD,
        [
            "add.3 (jit(f)/add, /home/me/train.py:41)",
            "from {devices=[2,1,4]<=[8] last_tile_dim_replicate} to {replicated}",
        ],
    ),
])  # fmt: skip
def test_a_tensor_that_is_gathered_to_be_sharded_anew_is_named_with_its_place(line: str, said: list[str]) -> None:
    (notice,) = read_diagnostics([*IDLE, line])

    assert notice.code == "involuntary_rematerialization"
    for part in said:
        assert part in notice.message
    assert "with_sharding_constraint" in notice.hint


def test_nobody_needs_jax_to_read_a_program() -> None:
    program = "import sys, meshwright.compiling.hlo\nprint(sorted({'jax', 'jaxlib', 'numpy'} & set(sys.modules)))"

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


def test_what_the_partitioner_only_tries_is_no_warning() -> None:
    line = (
        "W1121 spmd_partitioner.cc:656] [SPMD] Involuntary full rematerialization. The compiler cannot "
        "go from sharding {devices=[2,2,2]<=[8]} to {devices=[1,1,8]<=[4,2]T(1,0)} efficiently for HLO operation "
        "%fake_parameter.2 = bf16[4,512,32]{2,1,0} parameter(2), sharding={devices=[2,2,2]<=[8]}. As the last resort"
    )
    assert read_diagnostics([line]) == ()
    assert len(read_diagnostics([line.replace("fake_parameter.2", "parameter.2")])) == 1
