"""Under which keys a node's labels stand: each label's own name below one namespace, or a key of the operator's.

Rule: a key that Kubernetes or node-feature-discovery would drop is refused before the agent starts. Knows nothing of
what the labels say.

Source: kubernetes.io, "Labels and Selectors": a DNS name of at most 253 characters, a slash, a name of at most 63;
node-feature-discovery, docs/usage/customization-guide.md, "Node labels": below kubernetes.io only its own two.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

NAMES: Final = (
    "platform",
    "device-count",
    "device-product",
    "device-memory-bytes",
    "driver-version",
    "jax-version",
    "agent-version",
    "health",
    "nvlink-domain",
    "slice-shape",
    "all-reduce-busbw-bytes-per-s",
)
OWN_NAMESPACES: Final = ("feature.node.kubernetes.io", "profile.node.kubernetes.io")
NAMESPACE_CHARACTERS: Final = 253
_NAME: Final = re.compile(r"[A-Za-z0-9]([-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?")
_PART: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def parse_label_keys(text: str) -> dict[str, str]:
    """Returns name → key of the labels that are named otherwise; "" drops the label.

    `text` is "device-count=example.com/gpu-count,health=": pairs of a label's own name and its key, which stands below
    the prefix where it has no slash.

    Raises:
        ValueError: no such label, one twice, or a key that would not reach the node.
    """
    keys: dict[str, str] = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        name, equals, key = (part.strip() for part in pair.partition("="))
        if not equals:
            raise ValueError(f"{pair!r} has no =; name=key gives the label another key, name= drops it")
        if name not in NAMES:
            raise ValueError(f"there is no label {name!r}; the labels are {', '.join(NAMES)}")
        if name in keys:
            raise ValueError(f"{name} has two keys, {keys[name]!r} and {key!r}; a label has one")
        keys[name] = key
    return keys


def resolve_keys(prefix: str, text: str = "") -> dict[str, str]:
    """Returns name → whole key of all labels that are written.

    Raises:
        ValueError: as `parse_label_keys`, a key or namespace that would not reach the node, or two labels with one key.
    """
    named = parse_label_keys(text)
    found: dict[str, str] = {}
    for name, key in _list_keys(prefix, named):
        verify_key(key)
        if other := next((one for one, its in found.items() if its == key), None):
            raise ValueError(f"{other} and {name} have one key, {key}, which has one value; name one otherwise")
        found[name] = key
    return found


def _list_keys(prefix: str, named: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name in NAMES:
        if key := named.get(name, name):
            yield name, key if "/" in key else f"{prefix}/{key}"


def verify_key(key: str) -> None:
    """Returns when Kubernetes and node-feature-discovery take the key.

    Raises:
        ValueError: they would drop it; with the rule, and one that they take.
    """
    namespace, _, name = key.partition("/")
    if len(namespace) > NAMESPACE_CHARACTERS or not all(_PART.fullmatch(part) for part in namespace.split(".")):
        raise ValueError(f"{key!r} is no key: before the slash stands a DNS name, such as example.com/{name}")
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{key!r} is no key: after one slash stand up to 63 letters, digits, - _ and ., letters or digits "
            f"at both ends, such as {namespace}/gpu-count"
        )
    if _is_below(namespace, ("kubernetes.io", "k8s.io")) and not _is_below(namespace, OWN_NAMESPACES):
        raise ValueError(
            f"{key!r} is below a namespace that belongs to Kubernetes, and node-feature-discovery drops it; take "
            f"{OWN_NAMESPACES[0]}/{name}, or a domain of yours"
        )


def _is_below(namespace: str, parents: tuple[str, ...]) -> bool:
    return any(namespace == parent or namespace.endswith(f".{parent}") for parent in parents)
