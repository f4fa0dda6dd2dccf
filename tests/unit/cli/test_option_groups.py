from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Annotated, ClassVar

from meshwright.cli.option_groups import spread_options


@dataclass(frozen=True, kw_only=True)
class Size:
    is_option_group: ClassVar[bool] = True

    width: Annotated[int, "columns"] = 80
    name: str


@dataclass(frozen=True)
class Place:
    """No group: an ordinary value."""

    row: int = 0


@spread_options
def draw(place: Place, size: Size, mark: str = "x") -> tuple[Place, Size, str]:
    """Draws."""
    return place, size, mark


def test_the_fields_of_a_group_stand_in_its_place_with_their_annotations_and_defaults() -> None:
    parameters = inspect.signature(draw).parameters
    assert list(parameters) == ["place", "width", "name", "mark"]
    assert parameters["width"].annotation == Annotated[int, "columns"]
    assert (parameters["width"].default, parameters["name"].default) == (80, inspect.Parameter.empty)
    assert (draw.__name__, draw.__doc__) == ("draw", "Draws.")


def test_the_command_gets_the_group_that_the_options_say() -> None:
    assert draw(Place(3), name="a", mark="o") == (Place(3), Size(width=80, name="a"), "o")
    assert draw(Place(3), width=7, name="a")[1] == Size(width=7, name="a")


@dataclass(frozen=True, kw_only=True)
class Sheet:
    is_option_group: ClassVar[bool] = True

    title: str = ""
    size: Size
    colour: str = "black"


@spread_options
def post(sheet: Sheet) -> Sheet:
    """Posts."""
    return sheet


def test_a_group_in_a_group_has_its_fields_in_its_place_too() -> None:
    assert list(inspect.signature(post).parameters) == ["title", "width", "name", "colour"]
    assert post(name="a", colour="red") == Sheet(size=Size(name="a"), colour="red")
