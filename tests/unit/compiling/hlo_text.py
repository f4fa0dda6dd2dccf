"""HLO text as the protobuf that a compiled program gives, for tests on small programs written by hand."""

from __future__ import annotations

import re
from typing import Any

from jaxlib import _hlo

from meshwright.compiling.hlo.module import build_message


def serialize_text(text: str) -> bytes:
    return bytes(build_module(text).SerializeToString())


def build_module(text: str) -> Any:
    """Returns the message of a program, with the device assignment that XLA's parser of texts leaves out."""
    module = build_message("Module")
    module.ParseFromString(_hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto())
    counted = re.search(r"num_partitions=(\d+)", text)
    module.device_assignment.replica_count = 1
    module.device_assignment.computation_count = int(counted.group(1)) if counted else 1
    return module
