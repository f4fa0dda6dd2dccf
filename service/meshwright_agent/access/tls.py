"""TLS of the agent's own: a context from files, and a context that is another one after they have changed.

Rule: TLS 1.2 at least. A client certificate is asked for where a CA for clients is set, verified if one comes, and
demanded by the doorkeeper, not by the handshake: the open routes answer probes that have none.
"""

from __future__ import annotations

import logging
import os
import ssl
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from meshwright_agent.access.errors import AccessSettingsError
from meshwright_agent.access.watched import Watched

log = logging.getLogger(__name__)
HANDSHAKE_PROTOCOLS: Final = ["http/1.1"]


def build_context(certificate: Path, key: Path, client_ca: Path | None) -> ssl.SSLContext:
    """Returns a server's context.

    Raises:
        AccessSettingsError: a file cannot be read, is not PEM, is encrypted, or the key is not the certificate's.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(HANDSHAKE_PROTOCOLS)
    _load_chain(context, certificate, key)
    if client_ca is not None:
        _load_client_ca(context, client_ca)
    return context


def _load_chain(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    _check_readable(certificate)
    if _check_readable(key) & (stat.S_IROTH | stat.S_IWOTH):
        log.warning("TLS key %s can be read or written by anybody; chmod 600 %s", key, key)
    try:
        context.load_cert_chain(certificate, key, password=_refuse_password)
    except (ssl.SSLError, OSError, ValueError) as error:
        raise AccessSettingsError(
            f"TLS certificate {certificate} and key {key} cannot be used: {_say(error)}; give the certificate (with "
            "its chain) and its own key, both PEM, the key without a passphrase"
        ) from None


def _refuse_password() -> str:
    raise ValueError("the key is encrypted")  # else OpenSSL would ask on the terminal, and wait


def _load_client_ca(context: ssl.SSLContext, path: Path) -> None:
    _check_readable(path)
    try:
        context.load_verify_locations(cafile=path)
    except (ssl.SSLError, OSError) as error:
        raise AccessSettingsError(
            f"client CA {path} cannot be used: {_say(error)}; give the certificates of the CA, PEM"
        ) from None
    context.verify_mode = ssl.CERT_OPTIONAL


def _check_readable(path: Path) -> int:
    """Returns the permissions of a file that can be read."""
    try:
        with path.open("rb") as file:
            return stat.S_IMODE(os.fstat(file.fileno()).st_mode)
    except OSError as error:
        raise AccessSettingsError(
            f"TLS file {path}: {error.strerror}; give a PEM file that the agent can read"
        ) from None


def _say(error: Exception) -> str:
    reason = getattr(error, "reason", None)
    return str(reason).lower().replace("_", " ") if reason else str(error)


def say_failure(error: ssl.SSLError) -> str:
    """Returns why a handshake failed, as OpenSSL says it: `certificate verify failed: certificate has expired`."""
    verdict = getattr(error, "verify_message", "")
    return f"{_say(error)}: {verdict}" if verdict else _say(error)


class _Handshake(ssl.SSLObject):
    """One connection's TLS that tells why its handshake failed: asyncio keeps it to itself."""

    tell: Callable[[ssl.SSLError], None]

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            self.tell(error)
            raise


class TurningContext(ssl.SSLContext):
    """A context that makes each new connection from the newest of the contexts that `current` returns.

    A subclass, because asyncio keeps the context that a server was started with, and a loaded CA cannot be taken out of
    one again: `SSLContext.load_verify_locations` only adds.
    """

    current: Callable[[], ssl.SSLContext]
    tell: Callable[[ssl.SSLError], None]

    @classmethod
    def over(
        cls, current: Callable[[], ssl.SSLContext], tell: Callable[[ssl.SSLError], None] = lambda error: None
    ) -> TurningContext:
        """Returns a context that is what `current` returns at each connection; `tell` hears of failed handshakes."""
        context = cls(ssl.PROTOCOL_TLS_SERVER)
        context.current, context.tell = current, tell
        return context

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:
        """Returns one connection's TLS, as `SSLContext.wrap_bio`."""
        context = self.current()
        context.sslobject_class = _Handshake
        one = context.wrap_bio(*args, **options)
        if isinstance(one, _Handshake):
            one.tell = self.tell
        return one


def watch_tls_files(certificate: Path, key: Path, client_ca: Path | None) -> Watched[ssl.SSLContext]:
    """Returns the context of these files, to be read again when one of them changes.

    Raises:
        AccessSettingsError: see `build_context`. A certificate that is expired or not yet valid is accepted.
    """
    paths = [certificate, key, *([client_ca] if client_ca else [])]
    return Watched("TLS certificates", paths, lambda: build_context(certificate, key, client_ca))
