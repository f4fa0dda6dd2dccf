from __future__ import annotations

from meshwright.topology.identity import JobDevice, fingerprint, number_devices
from tests.fakes.jobs import cpu_job, tpu_job
from tests.fakes.topologies import build_tpu

AXES = (("dp", 2), ("tp", 2))
PLACES = [(0, 0), (0, 1), (0, 2), (0, 3)]


def test_a_fingerprint_is_stable_across_releases() -> None:
    assert fingerprint(AXES, ["auto", "auto"], PLACES) == "mw1-7f7b9d420034f19599c83cc9934b9f90"


def test_a_fingerprint_changes_when_anything_changes() -> None:
    changed = [
        (AXES, ["auto", "auto"], PLACES), ((("tp", 2), ("dp", 2)), ["auto", "auto"], PLACES),
        ((("dp", 4),), ["auto"], PLACES), ((("dp", 4), ("tp", 1)), ["auto", "auto"], PLACES),
        (AXES, ["auto", "explicit"], PLACES), (AXES, ["explicit", "auto"], PLACES),
        (AXES, ["auto", "auto"], PLACES[::-1]), (AXES, ["auto", "auto"], [(0, 0), (0, 1), (0, 2), (0, 4)]),
        (AXES, ["auto", "auto"], [(0, 0), (0, 1), (1, 0), (1, 1)]),
    ]  # fmt: skip
    assert len({fingerprint(*each) for each in changed}) == len(changed)


def test_devices_that_no_plan_told_about_stand_in_canonical_order() -> None:
    job = cpu_job(4, each=2)
    assert number_devices(reversed(job)) == {device.key: (0, rank) for rank, device in enumerate(job)}
    v5e = build_tpu((2, 2))
    numbered = number_devices(tpu_job(v5e, [3, 2, 1, 0]))
    assert [numbered[key] for key in sorted(numbered)] == [(0, 3), (0, 2), (0, 1), (0, 0)]
    seen = [JobDevice(0, i, "h", "gpu", uuid=f"GPU-{i}", host_position=p) for i, p in enumerate((5, 2))]
    assert number_devices(seen) == {(0, 0): (0, 5), (0, 1): (0, 2)}
