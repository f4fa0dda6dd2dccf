from __future__ import annotations

from meshwright import errors
from meshwright.errors import CODES, MeshwrightError, ProblemError


def test_every_class_with_a_code_is_raised_for_it() -> None:
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, ProblemError) and kind.code:
            assert CODES[kind.code].error is kind


def test_a_code_decides_status_and_title() -> None:
    for code, known in CODES.items():
        error = known.error("x", code=code)
        assert (error.code, error.status, error.title) == (code, known.status, known.title)
        assert code in (errors.__doc__ or "") or code == "internal"


def test_an_error_prints_its_detail_fields_hint_log_and_origin() -> None:
    error = errors.UnavailableError(
        "the worker died", hint="see the log", errors=[{"field": "mesh", "message": "no"}], log=["a", "b"], host="h",
        request_id="r", code="worker_failed",
    )  # fmt: skip
    said = ("the worker died", "mesh: no", "hint: see the log", "log: b", "worker_failed", "h", "r")
    assert all(part in str(error) for part in said)
    assert isinstance(error, MeshwrightError)
