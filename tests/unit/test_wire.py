from __future__ import annotations

import subprocess
import sys

import pytest
from pydantic import ValidationError

from meshwright import wire
from meshwright.wire.bench import BenchRequest
from meshwright.wire.devices import Link
from meshwright.wire.leases import MAX_TTL_S, LeaseRequest

LINK = {"a": 0, "b": 1, "kind": "NV18", "basis": "passive", "observed_at": "2026-01-02T00:00:00Z", "age_s": 0}


@pytest.mark.parametrize("wrong", [
    {"max_s": float("nan")}, {"max_s": float("inf")}, {"max_s": 0}, {"max_s": True}, {"max_s": "60"},
    {"sizes_bytes": [2**60]}, {"sizes_bytes": []}, {"sizes_bytes": [True]}, {"cases": ["teleport"]}, {"samples": 2},
    {"devices": ["0"]},
])  # fmt: skip
def test_a_bench_out_of_bounds_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        BenchRequest.model_validate(wrong)


@pytest.mark.parametrize("ttl_s", [0, -1, True, "60", None, float("nan"), float("inf"), MAX_TTL_S + 1])
def test_a_lease_of_no_number_of_seconds_that_it_may_last_is_refused(ttl_s: object) -> None:
    with pytest.raises(ValidationError):
        LeaseRequest.model_validate({"purpose": "x", "ttl_s": ttl_s})
    assert LeaseRequest.model_validate({"purpose": "x", "ttl_s": 60}).ttl_s == 60.0


@pytest.mark.parametrize("wrong", [
    {"bandwidth_bytes_per_s": 0}, {"bandwidth_bytes_per_s": -5}, {"bandwidth_bytes_per_s": 1e-320},
    {"bandwidth_bytes_per_s": float("inf")}, {"kind": ""}, {"kind": "NV²"}, {"kind": "NV" + "9" * 31},
])  # fmt: skip
def test_a_link_whose_price_could_not_be_told_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Link.model_validate({**LINK, **wrong})


def test_a_module_is_imported_at_its_first_use_and_others_are_no_attributes() -> None:
    code = "import sys; from meshwright import wire; print('meshwright.wire.runs' in sys.modules, wire.runs.Run)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("False <class")
    assert not hasattr(wire, "routes")
