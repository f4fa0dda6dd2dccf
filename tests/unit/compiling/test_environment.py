"""The environment of a compiler child."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from meshwright.compiling.environment import COMPILE_ENVIRONMENT, build_compile_environment

NAMES = st.text("ABCDEFGHIJKLMNOPQRSTUVWXYZ_", min_size=1, max_size=12)


def test_it_opens_no_device() -> None:
    made = build_compile_environment({"JAX_PLATFORMS": "cuda,tpu", "CUDA_VISIBLE_DEVICES": "0,1"})
    assert made["JAX_PLATFORMS"] == "cpu"
    assert {made[f"{name}_VISIBLE_DEVICES"] for name in ("CUDA", "HIP", "ROCR")} == {""}


def test_what_this_host_is_goes() -> None:
    host = {"TPU_TOPOLOGY": "4x4", "TPU_WORKER_ID": "3", "MEGASCALE_NUM_SLICES": "2", "JAX_NUM_CPU_DEVICES": "8"}
    made = build_compile_environment(host)
    assert "TPU_TOPOLOGY" not in made
    assert "MEGASCALE_NUM_SLICES" not in made
    assert "JAX_NUM_CPU_DEVICES" not in made
    assert made["TPU_WORKER_ID"] == "0"


def test_no_secret_and_nothing_of_the_service_manager_comes_along() -> None:
    told = {
        "MESHWRIGHT_TOKEN": "s",
        "MESHWRIGHT_TOKEN_FILE": "/s",
        "MESHWRIGHT_ADMIN_TOKEN": "s",
        "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "s",
        "NOTIFY_SOCKET": "/run/n",
        "WATCHDOG_USEC": "1",
        "WATCHDOG_PID": "1",
        "LISTEN_FDS": "1",
    }
    assert build_compile_environment(told) == COMPILE_ENVIRONMENT


def test_the_users_flags_stay_but_for_the_number_of_cpu_devices() -> None:
    flags = "--xla_gpu_enable_triton_gemm=false --xla_force_host_platform_device_count=8 --xla_dump_to=d"
    made = build_compile_environment({"XLA_FLAGS": flags, "LIBTPU_INIT_ARGS": "--xla_tpu_x=1"})
    assert made["XLA_FLAGS"] == "--xla_gpu_enable_triton_gemm=false --xla_dump_to=d"
    assert made["LIBTPU_INIT_ARGS"] == "--xla_tpu_x=1"
    assert "XLA_FLAGS" not in build_compile_environment({})


def test_libtpu_tells_its_warnings_and_leaves_no_files() -> None:
    made = build_compile_environment(
        {"TPU_LOG_DIR": "/var/log", "TPU_STDERR_LOG_LEVEL": "3", "TF_CPP_MIN_LOG_LEVEL": "3"}
    )
    assert made["TPU_LOG_DIR"] == "disabled"
    assert made["TPU_STDERR_LOG_LEVEL"] == made["TF_CPP_MIN_LOG_LEVEL"] == "1"


def test_a_libtpu_that_the_user_names_is_kept() -> None:
    assert build_compile_environment({"TPU_LIBRARY_PATH": "/opt/libtpu.so"})["TPU_LIBRARY_PATH"] == "/opt/libtpu.so"


@given(st.dictionaries(NAMES, st.text(max_size=8)))
def test_twice_is_once_and_what_is_not_about_devices_is_untouched(base: dict[str, str]) -> None:
    made = build_compile_environment(base)
    assert build_compile_environment(made) == made
    assert {name: made.get(name) for name in base if name.startswith("PATH")} == {
        name: value for name, value in base.items() if name.startswith("PATH")
    }
