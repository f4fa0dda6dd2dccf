"""Until when certificates hold: read as `cryptography` and OpenSSL read them, judged by a clock that is told."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography import x509
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright_agent.access.certificates import (
    CertificateFile,
    Use,
    Validity,
    judge_files,
    parse_certificates,
    parse_validity,
    read_certificates,
)

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
DAY = timedelta(days=1)
CA = trustme.CA()


def _issue(not_before: datetime, not_after: datetime) -> bytes:
    leaf = CA.issue_cert("localhost", not_before=not_before, not_after=not_after)
    return leaf.cert_chain_pems[0].bytes()


def _window(begins: float, ends: float) -> Validity:
    """A certificate that holds from and until so many days from now."""
    return Validity(NOW + begins * DAY, NOW + ends * DAY)


def _judge(use: Use, *certificates: Validity) -> tuple[str, str, str]:
    return CertificateFile(use, Path("/c.pem"), certificates).judge(NOW)


# ---- reading ---------------------------------------------------------------------------------------------------------


@settings(max_examples=20, deadline=None)
@given(
    begins=st.datetimes(datetime(1951, 1, 1), datetime(2100, 1, 1)),
    life=st.timedeltas(timedelta(seconds=1), timedelta(days=80_000)),
)
def test_times_are_those_that_were_signed_in_either_form_of_a_year(begins: datetime, life: timedelta) -> None:
    begins = begins.replace(microsecond=0, tzinfo=UTC)
    pem = _issue(begins, begins + life)
    known = x509.load_pem_x509_certificate(pem)
    (found,) = parse_certificates(pem)
    assert (found.not_before, found.not_after) == (known.not_valid_before_utc, known.not_valid_after_utc)


def test_every_certificate_of_a_file_is_read_whatever_stands_between_them() -> None:
    first, second = _issue(NOW - DAY, NOW + DAY), _issue(NOW, NOW + 2 * DAY)
    key = CA.issue_cert("localhost").private_key_pem.bytes()
    known = [_window(-1, 1), _window(0, 2)]
    assert list(parse_certificates(first + second)) == known
    assert (
        list(parse_certificates(b"Subject: CN=x\n" + first + key + b"\n# old\n" + second.replace(b"\n", b"\r\n")))
        == known
    )
    assert list(parse_certificates(first.replace(b"CERTIFICATE", b"TRUSTED CERTIFICATE"))) == known[:1]


@pytest.mark.parametrize(
    "data",
    [b"", b"nonsense", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----", _issue(NOW, NOW + DAY)[:-40]],
)
def test_what_is_no_certificate_is_said_and_breaks_nothing(data: bytes, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="certificate"):
        parse_certificates(data)
    path = tmp_path / "c.pem"
    path.write_bytes(data)
    found = read_certificates(path, "server")
    assert (found.decisive, found.certificates) == (None, ())
    state, reason, action = found.judge(NOW)
    assert state == "unknown"
    assert str(path) in reason
    assert "openssl" in action


def test_a_certificate_that_is_cut_anywhere_is_refused_until_its_times_are_there() -> None:
    der = ssl.PEM_cert_to_DER_cert(_issue(NOW, NOW + DAY).decode())
    assert parse_validity(der + b"behind it") == _window(0, 1)
    for end in range(len(der)):
        with pytest.raises(ValueError, match="certificate"):
            parse_validity(der[:end])


# ---- judging ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("begins", "ends", "state", "said"),
    [
        (-30, 60, "healthy", "ends at 2027-01-21 12:00 UTC"),
        (-76, 14.1, "healthy", "ends at"),
        (-76, 13.9, "degraded", "in 13 days"),
        (-89, 1, "degraded", "in 24 hours"),
        (-90, 0, "unhealthy", "has ended at 2026-11-22 12:00 UTC"),
        (-90, -1, "unhealthy", "has ended"),
        (0.5, 90, "degraded", "not valid before 2026-11-23 00:00 UTC"),
        (-0.5, 0.5, "healthy", "ends at"),
        (-0.9, 0.1, "degraded", "in 2 hours"),
    ],
)
@pytest.mark.parametrize("use", ["server", "client_ca"])
def test_a_certificate_is_judged_by_what_is_left_of_its_life(
    use: Use, begins: float, ends: float, state: str, said: str
) -> None:
    found, reason, action = _judge(use, _window(begins, ends))
    assert found == state
    assert said in reason
    assert "/c.pem" in reason
    assert bool(action) == (state != "healthy")


@pytest.mark.parametrize(
    ("use", "state", "said"),
    [("server", "unhealthy", "has ended"), ("client_ca", "healthy", "(1 of 2 have ended before)")],
)
def test_a_chain_ends_with_its_first_certificate_and_cas_with_their_last(use: Use, state: str, said: str) -> None:
    found, reason, _ = _judge(use, _window(-10, 100), _window(-300, -1))
    assert found == state
    assert said in reason


@pytest.mark.parametrize(("use", "state"), [("server", "degraded"), ("client_ca", "healthy")])
def test_a_chain_begins_with_its_last_certificate_and_cas_with_their_first(use: Use, state: str) -> None:
    assert _judge(use, _window(-10, 100), _window(1, 100))[0] == state


def test_a_ca_that_has_ended_does_not_stand_in_for_one_that_does_not_hold_yet() -> None:
    assert _judge("client_ca", _window(-10, -1), _window(1, 100))[0] == "degraded"


def test_of_all_files_the_worst_counts_and_each_is_named() -> None:
    def file(use: Use, *certificates: Any) -> CertificateFile:
        return CertificateFile(use, Path(f"/{use}.pem"), certificates, "" if certificates else "unreadable")

    others = {
        "healthy": file("client_ca", _window(-9, 90)),
        "degraded": file("client_ca", _window(-90, 9)),
        "unhealthy": file("client_ca", _window(-9, -1)),
        "unknown": file("client_ca"),
    }
    good = file("server", _window(-9, 90))
    for state, other in others.items():
        found, reason, action = judge_files((good, other), NOW)
        assert found == state
        assert "/server.pem" in reason
        assert str(other.path) in reason
        assert bool(action) == (state != "healthy")
