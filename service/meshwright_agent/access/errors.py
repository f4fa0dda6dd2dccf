"""What makes an agent refuse to start: settings of access, or files of theirs, that cannot be used."""

from __future__ import annotations

from meshwright.errors import MeshwrightError


class AccessSettingsError(MeshwrightError):
    """A token file, a certificate or an address that an agent must not start with; the text says what works."""
