"""Until when certificates hold: their times out of PEM files, and what an operator is told about them.

Rule: a chain ends with the first of its certificates, a file of CAs with the last: a new CA stands beside the old one
while clients change over. The times are read out of the DER here because `ssl` tells them of a peer's certificate and
of a CA's, and not of one's own. Verifies nothing: OpenSSL does.

Source: RFC 5280 §4.1 (Certificate, Validity), RFC 7468 (PEM), X.690 §8.1 (BER's tags and lengths).
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, Literal

Use = Literal["server", "client_ca"]
State = Literal["healthy", "degraded", "unknown", "unhealthy"]

SOON: Final = timedelta(days=14)
LIFE_LEFT_RATIO: Final = 1 / 6
"""Certificates of hours or days are renewed hours before they end: cert-manager renews when a third of the life is
left, so that with a sixth it is overdue. Source: https://cert-manager.io/docs/usage/certificate/#renewal"""

_WORST_FIRST: Final[tuple[State, ...]] = ("unhealthy", "unknown", "degraded", "healthy")
_NAMES: Final[dict[Use, str]] = {"server": "the agent's certificate", "client_ca": "the CA of clients"}
_PEM: Final = re.compile(
    rb"-----BEGIN (?P<what>(?:X509 |TRUSTED )?CERTIFICATE)-----\s(?P<body>[^-]*)-----END (?P=what)-----"
)
_SEQUENCE, _INTEGER, _UTC_TIME, _GENERALIZED_TIME, _VERSION = 0x30, 0x02, 0x17, 0x18, 0xA0
_DIGITS: Final = {_UTC_TIME: re.compile(rb"(\d{2})(\d{10})Z"), _GENERALIZED_TIME: re.compile(rb"(\d{4})(\d{10})Z")}
_FIRST_TWO_DIGIT_YEAR: Final = 50
"""RFC 5280 §4.1.2.5.1: years from 50 are 19xx, those below 20xx."""


@dataclass(frozen=True)
class Validity:
    """From when until when a certificate holds, both UTC."""

    not_before: datetime
    not_after: datetime

    @property
    def warn_at(self) -> datetime:
        """When its end is near: 14 days before it, or a sixth of its life where that is less."""
        return self.not_after - min(SOON, (self.not_after - self.not_before) * LIFE_LEFT_RATIO)


@dataclass(frozen=True)
class CertificateFile:
    """The certificates of a file that is in use.

    Attributes:
        use: `server`: the agent's own with its chain; `client_ca`: those that clients' certificates are signed by.
        path: where it stands.
        certificates: their times, in the file's order; empty where they cannot be read.
        failure: why they cannot.
    """

    use: Use
    path: Path
    certificates: tuple[Validity, ...]
    failure: str = ""

    @property
    def decisive(self) -> Validity | None:
        """The certificate whose end is the file's; None where the times cannot be read."""
        if not self.certificates:
            return None
        pick = min if self.use == "server" else max
        return pick(self.certificates, key=lambda each: each.not_after)

    def judge(self, now: datetime) -> tuple[State, str, str]:
        """Returns state, reason and action at a moment."""
        decisive = self.decisive
        if decisive is None:
            reason = f"the times of {self._say()} cannot be read: {self.failure}"
            return "unknown", reason, f"openssl x509 -noout -dates -in {self.path}"
        renew = f"put a new one into {self.path}; it is read again without a restart"
        if now >= decisive.not_after:
            return "unhealthy", f"{self._say()} has ended at {_format(decisive.not_after)}", renew
        if now < (begins := self._begin(now)):
            check = "check this host's clock, or put one into the file that holds already"
            return "degraded", f"{self._say()} is not valid before {_format(begins)}", check
        ends = f"{self._say()} ends at {_format(decisive.not_after)}"
        ends += self._count_ended(now)
        if now >= decisive.warn_at:
            return "degraded", f"{ends}, in {_format_left(decisive.not_after - now)}", renew
        return "healthy", ends, ""

    def _begin(self, now: datetime) -> datetime:
        """Returns from when on it holds: a chain with the last of its certificates, CAs with the first."""
        pick = max if self.use == "server" else min
        return pick(each.not_before for each in self.certificates if now < each.not_after)

    def _count_ended(self, now: datetime) -> str:
        ended = sum(now >= each.not_after for each in self.certificates)
        return f" ({ended} of {len(self.certificates)} have ended before)" if ended else ""

    def _say(self) -> str:
        return f"{_NAMES[self.use]} ({self.path})"


def judge_files(files: tuple[CertificateFile, ...], now: datetime) -> tuple[State, str, str]:
    """Returns state, reason and action of all files together: the worst state, every reason."""
    found = [file.judge(now) for file in files]
    state = min((state for state, _, _ in found), key=_WORST_FIRST.index)
    actions = dict.fromkeys(action for _, _, action in found if action)
    return state, "; ".join(reason for _, reason, _ in found), "; ".join(actions)


def read_certificates(path: Path, use: Use) -> CertificateFile:
    """Returns the certificates of a file with their times, or why they cannot be read.

    Raises:
        OSError: the file cannot be read.
    """
    data = path.read_bytes()
    try:
        return CertificateFile(use, path, parse_certificates(data))
    except ValueError as error:
        return CertificateFile(use, path, (), str(error))


def parse_certificates(data: bytes) -> tuple[Validity, ...]:
    """Returns the times of every certificate in a PEM file, in its order; keys and text between them do not matter.

    Raises:
        ValueError: it has none, or one that is no certificate.
    """
    found: list[Validity] = []
    for block in _PEM.finditer(data):
        try:
            der = binascii.a2b_base64(block["body"])
        except binascii.Error as error:
            raise ValueError(f"certificate {len(found) + 1} is no base64: {error}") from None
        found.append(parse_validity(der))
    if not found:
        raise ValueError("there is no certificate in it")
    return tuple(found)


def parse_validity(der: bytes) -> Validity:
    """Returns the times of a DER certificate; what stands behind it does not matter.

    Raises:
        ValueError: it is none.
    """
    certificate = _expect(_split(der), _SEQUENCE)
    fields = _split(_expect(_split(certificate), _SEQUENCE))
    tag, _ = next(fields, (None, b""))
    if tag == _VERSION:
        tag, _ = next(fields, (None, b""))
    if tag != _INTEGER:
        raise ValueError("it is no certificate: no serial number where one stands")
    _expect(fields, _SEQUENCE)  # the signature's algorithm
    _expect(fields, _SEQUENCE)  # the issuer
    times = _split(_expect(fields, _SEQUENCE))
    not_before, not_after = (_parse_time(*next(times, (0, b""))) for _ in range(2))
    if not_after < not_before:
        raise ValueError("it is no certificate: it ends before it begins")
    return Validity(not_before, not_after)


def _expect(elements: Iterator[tuple[int, bytes]], wanted: int) -> bytes:
    tag, content = next(elements, (None, b""))
    if tag != wanted:
        raise ValueError(f"it is no certificate: tag {tag} where {wanted} stands in one")
    return content


def _split(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yields tag and content of the elements that stand one after another; each whole, or ValueError."""
    place = 0
    while place < len(data):
        tag, (start, size) = data[place], _read_length(data, place + 1)
        if start + size > len(data):
            raise ValueError("it is no certificate: an element is longer than what it stands in")
        yield tag, data[start : start + size]
        place = start + size


def _read_length(data: bytes, place: int) -> tuple[int, int]:
    """Returns where the content starts, and how many bytes it has; DER has no length that is left open."""
    first = data[place] if place < len(data) else 0x80
    if first < 0x80:
        return place + 1, first
    count = first & 0x7F
    if not 1 <= count <= 4:
        raise ValueError("it is no certificate: an element has no length, or one of more than 4 bytes")
    start = place + 1 + count
    return start, int.from_bytes(data[place + 1 : start], "big")


def _parse_time(tag: int, content: bytes) -> datetime:
    form = _DIGITS.get(tag)
    found = form.fullmatch(content) if form else None
    if found is None:
        raise ValueError("it is no certificate: a time that is neither UTCTime nor GeneralizedTime of RFC 5280")
    year = int(found[1])
    if tag == _UTC_TIME:
        year += 1900 if year >= _FIRST_TWO_DIGIT_YEAR else 2000
    rest = found[2].decode()
    parts = [int(rest[start : start + 2]) for start in range(0, len(rest), 2)]
    return datetime(year, parts[0], parts[1], parts[2], parts[3], parts[4], tzinfo=UTC)


def _format(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def _format_left(left: timedelta) -> str:
    """Returns a time in whole days, or hours, so that it is another one once a day or an hour."""
    return f"{left.days} days" if left.days >= 2 else f"{int(left.total_seconds() // 3600)} hours"
