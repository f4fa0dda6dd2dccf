"""TargetSpec: hardware as people write it, "2*v5e:16x16". Parse, check, print.

Pure syntax: `meshwright.topology.systems` knows which hardware exists, and `meshwright.topology.targets` makes a
topology of it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from meshwright.errors import InvalidRequestError

MAX_LENGTH: Final = 80
MAX_DIMENSIONS: Final = 3
MAX_NUMBER: Final = 10**6

TARGET_EXAMPLE: Final = (
    'write it as "v5p:4x4x4" (chips of a TPU slice), "h100:8" (GPUs of a host), "64*h100:8" (64 of them), '
    '"v5litepod-256" (a slice by its name) or "v4:4x4x8_twisted"'
)

_TWISTS: Final = {None: "", True: "_twisted", False: "_untwisted"}
"""As `gcloud … --topology` and libtpu write them. Source: libtpu 0.0.51 reads "v4:4x4x8_twisted" and
"v4:4x4x8_untwisted"; github.com/gclouduniverse/reproducibility, Training/TPU-v5p/Mixtral-8x7B-PyTorch, gives
"4x4x8_untwisted" to gcloud."""

_CHIP: Final = re.compile(r"[a-z0-9]+([.-][a-z0-9]+)*")


@dataclass(frozen=True)
class TargetSpec:
    """Hardware by its name: `granules` slices, or hosts, of one kind.

    Attributes:
        chip: a chip ("v5p", "h100", "cpu"), or a whole slice ("v5p-256"); in lower case.
        shape: chips of a TPU slice in x, y, z, or the devices of one host; empty: not given.
        granules: the number of slices, or hosts.
        twisted: whether the torus is twisted; None: not given.

    Raises:
        InvalidRequestError: the name is not valid, a number is outside 1 to a million, or there are more than three
            dimensions.
    """

    chip: str
    shape: tuple[int, ...] = ()
    granules: int = 1
    twisted: bool | None = None

    def __post_init__(self) -> None:
        if not _CHIP.fullmatch(self.chip):
            raise _refuse(
                f"chip {self.chip[:MAX_LENGTH]!r} is no name; a name has letters and digits, with single - or . between"
            )
        if len(self.shape) > MAX_DIMENSIONS:
            raise _refuse(f"shape {write_shape(self.shape)} has {len(self.shape)} dimensions; there are 1 to 3")
        for number in (self.granules, *self.shape):
            if not 1 <= number <= MAX_NUMBER:
                raise _refuse(f"the target has the number {number}; a number is 1 to {MAX_NUMBER}")

    @classmethod
    def parse(cls, text: str) -> TargetSpec:
        """Returns the spec that `[granules*]chip[:shape][_twisted|_untwisted]` describes, in any case.

        Raises:
            InvalidRequestError: naming the piece that is wrong.
        """
        asked = " ".join(text.lower().split())
        if not asked or len(asked) > MAX_LENGTH:
            what = f"{len(asked)} characters long" if asked else "empty"
            raise _refuse(f"the target is {what}; it has 1 to {MAX_LENGTH} characters")
        if "," in asked:
            raise _refuse(f"target {text!r} has a comma; a target is one kind of hardware; name each target by itself")
        count, star, rest = asked.rpartition("*")
        rest, twisted = _parse_twist(rest.strip())
        chip, colon, shape = (part.strip() for part in rest.partition(":"))
        return cls(
            chip=re.sub(r"[ _]+", "-", chip),
            shape=tuple(_parse_number(size, text) for size in shape.split("x")) if colon else (),
            granules=_parse_number(count, text) if star else 1,
            twisted=twisted,
        )

    def __str__(self) -> str:
        granules = f"{self.granules}*" if self.granules != 1 else ""
        shape = f":{write_shape(self.shape)}" if self.shape else ""
        return f"{granules}{self.chip}{shape}{_TWISTS[self.twisted]}"


def write_shape(shape: tuple[int, ...]) -> str:
    """Returns a shape as people write it: (4, 4, 8) → "4x4x8"."""
    return "x".join(map(str, shape))


def _parse_twist(text: str) -> tuple[str, bool | None]:
    for twisted, suffix in _TWISTS.items():
        if suffix and text.endswith(suffix):
            return text.removesuffix(suffix).rstrip(), twisted
    return text, None


def _parse_number(digits: str, text: str) -> int:
    digits = digits.strip()
    if not (digits.isascii() and digits.isdigit() and len(digits) <= len(str(MAX_NUMBER))):
        raise _refuse(f"target {text[:MAX_LENGTH]!r} has {digits!r} where a number of 1 to {MAX_NUMBER} must stand")
    return int(digits)


def _refuse(detail: str) -> InvalidRequestError:
    return InvalidRequestError.of("target", detail, TARGET_EXAMPLE)
