"""Where an agent may listen without tokens: on loopback and its unix socket, unless --insecure is said."""

from __future__ import annotations

import ipaddress
import logging
import socket

from meshwright_agent.access.errors import AccessSettingsError
from meshwright_agent.settings import Settings

log = logging.getLogger(__name__)


def check_exposure(settings: Settings) -> None:
    """Returns if the agent may listen where it is told to; warns of what others could hear or do.

    Raises:
        AccessSettingsError: others than this host could reach it, and it asks for no token.
    """
    if not settings.host or is_loopback(settings.host):
        return
    anybody = "anybody there" if settings.tls_client_ca_file is None else "whoever holds a client certificate"
    if settings.tokens_file is None and not settings.insecure:
        raise AccessSettingsError(
            f"--host {settings.host} can be reached from other hosts, and there is no token file: {anybody} could "
            "run benches and take the devices away. Make one with `meshwright-agent token add NAME --scope operate "
            "--file FILE` and give --tokens-file FILE; or listen on 127.0.0.1 or --uds; or say --insecure"
        )
    if settings.tokens_file is None and settings.tls_client_ca_file is not None:
        log.warning(
            "--insecure: whoever holds a certificate of %s and reaches %s may do everything here, without a token",
            *(settings.tls_client_ca_file, settings.host),
        )
    elif settings.tokens_file is None:
        log.warning("--insecure: whoever reaches %s may do everything here, without a token", settings.host)
    elif settings.tls_cert_file is None:
        log.warning("tokens travel unencrypted to %s; give --tls-cert-file and --tls-key-file", settings.host)


def is_loopback(host: str, *, flags: int = 0) -> bool:
    """Returns whether every address of a host is this host's loopback; False where it has none.

    Args:
        host: an address or a name.
        flags: of getaddrinfo(3); AI_NUMERICHOST asks no name server.
    """
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=flags)
    except (OSError, UnicodeError):  # IDNA refuses empty labels, and those of more than 63 characters
        return False
    addresses = {str(address[0]).partition("%")[0] for _, _, _, _, address in found}
    return all(ipaddress.ip_address(address).is_loopback for address in addresses)
