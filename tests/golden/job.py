"""A process on 8 virtual CPU devices that evaluates expressions of the public Python names, one a line."""

from __future__ import annotations

import json
import sys

import jax
import numpy

import meshwright
from meshwright import devices, mesh, parallelism, placement

NAMES = {"jax": jax, "numpy": numpy, "meshwright": meshwright, "client": meshwright.Client()}


def main() -> None:
    for module in (mesh, placement, devices, parallelism):
        NAMES.update({name: getattr(module, name) for name in module.__all__})
    for line in sys.stdin:
        try:
            reply = {"value": eval(json.loads(line), NAMES)}
        except Exception as error:
            reply = {"raises": type(error).__name__, "message": str(error)}
        print(json.dumps(reply, default=str), flush=True)


if __name__ == "__main__":
    main()
