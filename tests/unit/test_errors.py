from __future__ import annotations

from meshwright import errors
from meshwright.errors import BY_CODE, MeshwrightError, ProblemError


def test_every_code_belongs_to_one_class_and_has_a_title_and_an_error_status() -> None:
    assert len(BY_CODE) >= 15
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


def test_an_error_prints_its_detail_fields_hint_log_and_origin() -> None:
    error = errors.WorkerFailedError(
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
        for part in ("the worker died", "mesh: no", "hint: see the log", "log: b", "worker_failed", "h", "r")
    )
    assert isinstance(error, MeshwrightError)
