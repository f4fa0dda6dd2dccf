"""`meshwright lease`: what is asked, what is printed, which exit code; real commands run under leases."""

from __future__ import annotations

import errno
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
import typer

from meshwright.errors import ForbiddenError, NotFoundError
from tests.unit.cli.conftest import CommandLine


def _lease_away(line: CommandLine, **fields: Any) -> str:
    """Somebody else's lease of everything; returns its id."""
    with line.fake.client() as other:
        lease_id = f"lease-{len(other.leases().leases) + 1}"
        return other.lease(**{"purpose": "job 9", "lease_id": lease_id, **fields}).id


def _list_leases(line: CommandLine) -> list[str]:
    with line.fake.client() as other:
        return [lease.id for lease in other.leases().leases]


def _end_lease(line: CommandLine, lease_id: str = "lease-00000001") -> None:
    """Ends a lease as another client."""
    with line.fake.client() as other:
        other.end_lease(lease_id)


def test_a_lease_says_its_id_its_devices_and_how_long(h100: CommandLine) -> None:
    printed = h100("lease", "create", "0,1", "--purpose", "slurm job 7", "--ttl", "30min", "--preemptible")
    assert (printed.code, printed.out) == (0, "lease-00000001 has device 0, 1 for 30 min: slurm job 7\n")
    assert h100.body() == {"devices": [0, 1], "purpose": "slurm job 7", "ttl_s": 1800.0, "preemptible": True}


@pytest.mark.parametrize("options", [("--id-only",), ("--format=json",), ()])
def test_a_lease_whose_id_could_not_be_written_is_ended(
    h100: CommandLine, options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(typer, "echo", fail)
    monkeypatch.setattr("meshwright.cli.print_error", lambda *_: None)
    monkeypatch.setattr("meshwright.cli.drop", lambda _: None)
    assert h100("lease", "create", "0", "--purpose", "x", *options).code == 2
    assert [request.method for request in h100.fake.requests] == ["PUT", "DELETE"]
    h100.fake.requests.clear()
    assert h100("lease", "create", "0", "--purpose", "x", "--id", "job-7", *options).code == 2
    assert [request.method for request in h100.fake.requests] == ["PUT"]  # who named it knows its id


@pytest.mark.parametrize(("hint", "said"), [
    ('use "devices": [2, 3]; or DELETE /leases/job-7', "use devices 2,3; or `meshwright lease end job-7`"),
    ('PUT /leases/job-7 with {"devices": "all"}', "`meshwright lease create --id job-7 --purpose TEXT`"),
    ("GET /leases, PUT /leases/{id} makes one", "`meshwright lease list`, `meshwright lease create` makes one"),
    ('another of GET /devices; use {"count": 3}', "another of `meshwright devices`; use --count 3"),
    ('POST it with "include_devices": false; or use --offline of the command line, which has no limit',
     "use --offline, which has no limit"),
    ("DELETE /leases/job-7 on node-b", "`meshwright lease end job-7` on node-b"),
    ("give the `lease` that the job has; name a device in `devices`",
     "set MESHWRIGHT_LEASE to the job's; name a device in --devices"),
    ('name a target, such as "v5e:4x4"; or leave out model', "name a target: --target v5e:4x4; or leave out --model"),
    ("use a global_batch_size of 576, 513 or 516; or search on 64 of them, devices {\"count\": 64}",
     "use --global-batch-size 576, 513 or 516; or search on 64 of them, --count 64"),
    ("DELETE /runs/r-1, or with preemptible: false", "`meshwright runs cancel r-1`, or without --preemptible"),
])  # fmt: skip
def test_a_hint_speaks_of_commands_and_not_of_http(h100: CommandLine, hint: str, said: str) -> None:
    h100.fake.fail_next(NotFoundError("not here", hint=hint), path="/leases")
    assert f"hint: {said}\n" in h100("lease", "list").err


def test_an_error_speaks_of_options_and_not_of_fields(h100: CommandLine) -> None:
    h100.fake.fail_next(NotFoundError("training.seq_len: seq_len 9 for per_device_batch_size 8"), path="/leases")
    assert "error: --seq-len: --seq-len 9 for --per-device-batch-size 8\n" in h100("lease", "list").err


def test_leases_are_listed_renewed_and_ended(h100: CommandLine) -> None:
    assert h100("lease", "list").out == "no leases\n"
    lease_id = _lease_away(h100, devices=[2, 3], preemptible=True)
    row = next(line.split() for line in h100("lease", "list").out.splitlines() if line.startswith("lease-"))
    assert row[:2] == [lease_id, "2,3"]
    assert row[-3:] == ["yes", "job", "9"]
    for ttl in (("--ttl", "2h"), ()):  # without --ttl a renewal never shortens
        assert h100("lease", "renew", lease_id, *ttl).out == f"{lease_id} has device 2, 3 for 2 h: job 9\n"
    assert h100("lease", "renew", lease_id, "--ttl", "1min").out == f"{lease_id} has device 2, 3 for 1 min: job 9\n"
    assert h100("lease", "renew", lease_id).out == f"{lease_id} has device 2, 3 for 1 h: job 9\n"
    assert h100("lease", "end", lease_id).out == f"{lease_id} no longer has device 2, 3: job 9\n"
    assert h100("lease", "end", lease_id).code == 1
    assert h100("--format=json", "lease", "list").json["leases"] == []


def test_leases_are_ended_by_what_they_are_for_and_none_is_no_failure(h100: CommandLine) -> None:
    kept = _lease_away(h100, devices=[0], purpose="slurm job 47110")
    ended = [_lease_away(h100, devices=[each], purpose="slurm job 4711") for each in (1, 2)]
    other = _lease_away(h100, devices=[3], purpose="slurm job 9")
    by_purpose = ("lease", "end", "--purpose", "slurm job 4711")
    assert h100("lease", "list", "--purpose", "slurm job 9", "--format=json").json["leases"][0]["id"] == other
    printed = h100(*by_purpose, "--purpose", "slurm job 9")
    assert [line.split()[0] for line in printed.out.splitlines()] == [*ended, other]
    assert _list_leases(h100) == [kept]
    again = h100(*by_purpose)
    assert (again.code, again.out) == (0, "no leases\n")


def test_a_lease_that_ends_while_those_of_its_purpose_are_ended_is_no_failure(h100: CommandLine) -> None:
    first, second = (_lease_away(h100, devices=[each]) for each in (0, 1))
    h100.fake.fail_next(NotFoundError("it has ended"), path=f"/leases/{second}")
    printed = h100("--format=json", "lease", "end", "--purpose", "job 9")
    assert (printed.code, [lease["id"] for lease in printed.json["leases"]]) == (0, [first])


def test_a_lease_that_is_anothers_keeps_none_of_the_others_of_its_purpose(h100: CommandLine) -> None:
    """A token that was rotated while a job ran: every prolog after it ended nothing, and reserved nothing."""
    first, second = (_lease_away(h100, devices=[each]) for each in (0, 1))
    h100.fake.fail_next(ForbiddenError(f"lease {first} was taken by slurm"), path=f"/leases/{first}")
    printed = h100("lease", "end", "--purpose", "job 9")
    assert (printed.code, printed.out) == (1, f"{second} no longer has device 1: job 9\n")
    assert f"lease {first} was taken by slurm" in printed.err
    assert _list_leases(h100) == [first]
    h100.fake.fail_next(ForbiddenError(f"lease {first} was taken by slurm"), path=f"/leases/{first}")
    printed = h100("lease", "end", "--purpose", "job 9")
    assert (printed.code, printed.out) == (1, "")


@pytest.mark.parametrize(("arguments", "said"), [
    (("lease", "end", "lease-1", "--purpose", "x"), "--purpose"), (("lease", "renew"), "ID"),
    (("lease", "end"), "--purpose"), (("lease", "create"), "--purpose"),
    (("lease", "create", "--purpose", "x", "--ttl", "60"), "30min"),
    (("lease", "create", "0,,1", "--purpose", "x"), "0,1"), (("lease", "list", "lease-1"), "lease-1"),
    (("lease", "drop", "lease-1"), "renew"), (("lease", "run", "--purpose", "x"), "COMMAND"),
    (("lease", "run", "--purpose", "x", "--ttl", "5", "--", "true"), "30min"),
    (("lease", "create", "4", "--count", "4", "--purpose", "x"), "--count"),
    (("lease", "run", "--devices", "4", "--count", "4", "--purpose", "x", "true"), "--count"),
])  # fmt: skip
def test_a_wrong_argument_is_2_with_what_works_and_asks_nobody(
    h100: CommandLine, arguments: tuple[str, ...], said: str
) -> None:
    printed = h100(*arguments)
    assert (printed.code, h100.fake.requests) == (2, [])
    assert said in printed.err


def test_a_number_of_devices_is_counted_and_one_number_is_a_device(h100: CommandLine) -> None:
    printed = h100("lease", "create", "4", "--purpose", "x")
    assert (printed.code, "has device 4 for" in printed.out) == (0, True)
    assert printed.err == "note: this leases device number 4, one device; use --count 4 for 4 devices\n"
    printed = h100("lease", "create", "--count", "4", "--purpose", "x")
    assert (printed.code, printed.err, "has device 0, 1, 2, 3 for" in printed.out) == (0, "", True)
    for quiet in ("--id-only", "--format=json"):
        assert h100("lease", "create", "6" if quiet == "--format=json" else "5", "--purpose", "x", quiet).err == ""
    refused = h100("lease", "create", "--count", "4", "--purpose", "x")
    assert (refused.code, "ask for 1 or fewer" in refused.err) == (1, True)


# ---- hold


def _hold(line: CommandLine, code: str, *options: str) -> int:
    return line("lease", "run", "--purpose", "train", *options, "--", sys.executable, "-c", code).code


def test_the_command_knows_its_lease_and_has_it_while_it_runs(h100: CommandLine, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    assert _hold(h100, f"import os; open({str(seen)!r}, 'w').write(os.environ['MESHWRIGHT_LEASE'])") == 0
    assert seen.read_text() == "lease-00000001"
    assert "MESHWRIGHT_LEASE" not in os.environ
    assert _list_leases(h100) == []


def test_without_the_lease_the_command_does_not_run(h100: CommandLine, tmp_path: Path) -> None:
    _lease_away(h100)
    assert _hold(h100, f"open({str(tmp_path / 'ran')!r}, 'w')") == 1
    h100.fake.fail_next(httpx.ConnectError("refused"), times=9)
    assert _hold(h100, f"open({str(tmp_path / 'ran')!r}, 'w')") == 2
    assert not (tmp_path / "ran").exists()


def test_a_command_may_go_on_without_its_lease_and_that_is_said(h100: CommandLine, tmp_path: Path) -> None:
    def take_away() -> None:
        while not (tmp_path / "up").exists():
            time.sleep(0.01)
        _end_lease(h100)

    taker = threading.Thread(target=take_away, daemon=True)
    taker.start()
    command = (sys.executable, "-c", f"import time; open({str(tmp_path / 'up')!r}, 'w'); time.sleep(1.5)")
    printed = h100("lease", "run", "--purpose", "x", "--ttl", "0.6s", "--", *command)
    taker.join()
    assert printed.code == 75
    assert "the lease is lost, the command goes on without it" in printed.err
    assert "the lease was lost before the command ended (exit code 0)" in printed.err


def test_a_warning_that_cannot_be_written_does_not_let_the_command_go_on(
    h100: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("meshwright.cli.leases.print_warning", refuse)
    taker = threading.Timer(1.0, lambda: _end_lease(h100))
    taker.start()
    command = (sys.executable, "-c", f"import time; time.sleep(20); open({str(tmp_path / 'whole')!r}, 'w')")
    h100("lease", "run", "--purpose", "x", "--ttl", "0.6s", "--if-lost", "stop", "--", *command)
    taker.join()
    assert not (tmp_path / "whole").exists()


@pytest.mark.parametrize("options", [("--preemptible",), ("--if-lost", "warn")])
def test_a_command_that_ends_before_the_loss_is_known_is_75_and_says_so(
    h100: CommandLine, tmp_path: Path, options: tuple[str, ...]
) -> None:
    up, go = tmp_path / "up", tmp_path / "go"

    def take_away() -> None:
        while not up.exists():
            time.sleep(0.01)
        _end_lease(h100)
        go.touch()

    taker = threading.Thread(target=take_away, daemon=True)
    taker.start()
    wait = f"import pathlib, time; pathlib.Path({str(up)!r}).touch()\n"
    wait += f"while not pathlib.Path({str(go)!r}).exists(): time.sleep(0.01)"
    printed = h100("lease", "run", "--purpose", "x", *options, "--", sys.executable, "-c", wait)
    taker.join()
    assert printed.code == 75
    assert "the lease was lost before the command ended (exit code " in printed.err
    assert "lease-00000001" in printed.err
