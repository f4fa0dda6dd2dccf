"""node-feature-discovery's reading of a feature file, with Kubernetes' rules for labels, to hold our file against.

Source: node-feature-discovery, docs/usage/customization-guide.md, "Feature files" and "Node labels" (read 2026-11): a
file over 64 KiB is ignored, lines are namespace/name=value, `# +expiry-time=` (RFC 3339) holds until the next one,
namespaces below kubernetes.io are refused but for feature.node.kubernetes.io's and profile.node.kubernetes.io's.
Kubernetes, "Labels and Selectors": lengths and characters. What that tool would drop or log is an error here.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final

SIZE_LIMIT_BYTES: Final = 65536
OWN_NAMESPACES: Final = ("feature.node.kubernetes.io", "profile.node.kubernetes.io")
NAME: Final = re.compile(r"[A-Za-z0-9]([-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?")
PART: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


class FeatureFileError(Exception):
    """The file, or a label of it, would not reach the node."""


def read_feature_file(text: str, *, now: datetime) -> dict[str, str]:
    """Returns the labels that a node has from this file at `now`."""
    if len(text.encode()) >= SIZE_LIMIT_BYTES:
        raise FeatureFileError("the file is too large and would be ignored")
    labels: dict[str, str] = {}
    is_expired = False
    for line in text.split("\n"):
        if line.startswith("# +expiry-time="):
            is_expired = _read_moment(line.partition("=")[2]) <= now
        elif line.strip() and not line.startswith("#"):
            key, value = _read_label(line)
            if not is_expired:
                labels[key] = value
    return labels


def _read_moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise FeatureFileError(f"{text!r} is no time as RFC 3339 has it") from error
    if moment.tzinfo is None:
        raise FeatureFileError(f"{text!r} has no time zone")
    return moment


def _read_label(line: str) -> tuple[str, str]:
    key, equals, value = line.partition("=")
    namespace, slash, name = key.partition("/")
    if not slash or len(namespace) > 253 or not all(PART.fullmatch(part) for part in namespace.split(".")):
        raise FeatureFileError(f"{key!r} has no namespace that is a DNS name")
    if namespace.endswith("kubernetes.io") and not namespace.endswith(OWN_NAMESPACES):
        raise FeatureFileError(f"{namespace!r} belongs to Kubernetes")
    if not NAME.fullmatch(name):
        raise FeatureFileError(f"{name!r} is no name of a label")
    if value and not NAME.fullmatch(value):
        raise FeatureFileError(f"{value!r} is no value of a label")
    return key, value if equals else "true"
