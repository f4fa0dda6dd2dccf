from __future__ import annotations

import pytest

from meshwright import errors
from meshwright.errors import BY_CODE, MeshwrightError, ProblemError, class_for


def test_every_code_belongs_to_one_class_and_has_a_title_and_an_error_status() -> None:
    assert len(BY_CODE) >= 20
    for code, cls in BY_CODE.items():
        assert cls.code == code
        assert cls.title != ProblemError.title
        assert 400 <= cls.default_status < 600


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    assert errors.__doc__
    for code, cls in BY_CODE.items():
        line = next(line for line in errors.__doc__.splitlines() if cls.__name__ in line)
        assert code in line
        assert str(cls.default_status) in line


@pytest.mark.parametrize(
    ("code", "status", "expected"),
    [
        ("invalid_mesh", 422, errors.InvalidMeshError),
        ("of_tomorrow", 404, errors.NotFoundError),
        ("of_tomorrow", 409, errors.ConflictError),
        ("of_tomorrow", 429, errors.QueueFullError),
        ("of_tomorrow", 503, errors.UnavailableError),
        ("of_tomorrow", 418, errors.RequestError),
        ("of_tomorrow", 500, ProblemError),
    ],
)
def test_a_code_of_a_newer_agent_falls_back_to_its_status(code: str, status: int, expected: type[ProblemError]) -> None:
    assert class_for(code, status) is expected


def test_an_error_prints_its_detail_fields_hint_log_and_origin() -> None:
    error = errors.WorkerCrashedError(
        "the worker died",
        hint="see the log",
        errors=[{"field": "mesh", "message": "no"}],
        log=["a", "b"],
        host="h",
        request_id="r",
    )
    text = str(error)
    assert all(
        part in text
        for part in ("the worker died", "mesh: no", "hint: see the log", "log: b", "worker_crashed", "h", "r")
    )
    assert isinstance(error, MeshwrightError)
