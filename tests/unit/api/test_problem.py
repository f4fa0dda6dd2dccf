from __future__ import annotations

import errno
import json
import logging
import math
import os

import pytest
from fastapi import FastAPI, Query
from hypothesis import given
from hypothesis import strategies as st
from starlette.exceptions import HTTPException

from meshwright.errors import BY_CODE, NotReadyError, ProblemError, WorkerCrashedError
from meshwright.wire.problem import Problem
from meshwright_agent.api.problem import MEDIA_TYPE, build_response
from tests.unit.api.asgi import ask, build_small_app


@pytest.fixture(scope="module")
def app() -> FastAPI:
    app = build_small_app()

    @app.get("/crash")
    async def crash() -> None:
        raise WorkerCrashedError("killed by signal 9", hint="look", log=["one", "two"], retry_after_s=0.2)

    @app.get("/bug")
    async def bug() -> None:
        raise KeyError("secret-token")

    @app.get("/open/{number}")
    async def open_file(number: int, through: bool = False) -> None:
        failure = OSError(number, os.strerror(number))
        if through:
            raise ImportError("no module") from failure
        raise failure

    @app.get("/teapot")
    async def teapot() -> None:
        raise HTTPException(418, "short and stout", headers={"X-Handle": "here"})

    @app.get("/number")
    async def number(value: int = Query(ge=1)) -> int:
        return value

    @app.post("/number")
    async def keep() -> None:
        return None

    @app.delete("/number")
    async def drop() -> None:
        return None

    return app


def test_an_error_of_ours_becomes_its_problem_with_log_and_retry_after(app: FastAPI) -> None:
    heard = ask(app, target="/crash", headers={})
    assert (heard.status, heard.headers["content-type"], heard.headers["retry-after"]) == (503, MEDIA_TYPE, "1")
    assert (heard.document["code"], heard.document["log"]) == ("worker_crashed", ["one", "two"])


def test_a_bug_is_an_internal_problem_with_the_traceback_in_the_log_only(
    app: FastAPI, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR), pytest.raises(KeyError):  # Starlette raises it again for the server's log
        ask(app, target="/bug")
    assert "GET /bug failed" in caplog.text


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_a_lack_of_descriptors_is_no_bug_and_says_when_to_come_back(
    app: FastAPI, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    heard = ask(app, target=f"/open/{number}", headers={})
    assert (heard.status, heard.document["code"], heard.headers["retry-after"]) == (503, "too_many_connections", "2")
    assert "LimitNOFILE" in heard.document["hint"]
    assert "Traceback" not in caplog.text
    with pytest.raises(ImportError):  # Starlette's, of what it sends to the handler of all exceptions
        ask(app, target=f"/open/{number}?through=true")
    assert "failed" not in caplog.text
    with pytest.raises(FileNotFoundError):
        ask(app, target=f"/open/{errno.ENOENT}")
    assert f"GET /open/{errno.ENOENT} failed" in caplog.text


@pytest.mark.parametrize(("method", "allowed"), [("PUT", "GET, POST, DELETE"), ("OPTIONS", "GET, POST, DELETE")])
def test_a_method_that_is_not_taken_names_all_that_are_also_of_several_routes(
    app: FastAPI, method: str, allowed: str
) -> None:
    heard = ask(app, method, "/number")
    assert (heard.status, heard.document["code"]) == (405, "method_not_allowed")
    assert heard.headers["allow"] == allowed
    assert allowed in heard.document["hint"]


def test_a_path_that_is_none_is_a_problem_that_says_where_the_routes_stand(app: FastAPI) -> None:
    heard = ask(app, target="/no/such")
    assert (heard.status, heard.document["code"]) == (404, "route_not_found")
    assert "/no/such" in heard.document["detail"]
    assert "/docs" in heard.document["hint"]


def test_any_other_http_error_keeps_its_status_and_headers(app: FastAPI) -> None:
    heard = ask(app, target="/teapot")
    assert (heard.status, heard.document["status"], heard.headers["x-handle"]) == (418, 418, "here")
    assert heard.document["detail"] == "short and stout"
    assert "/docs" in heard.document["hint"]


@pytest.mark.parametrize("query", ["", "?value=0", "?value=two"])
def test_a_wrong_query_is_a_problem_that_names_the_parameter(app: FastAPI, query: str) -> None:
    heard = ask(app, target=f"/number{query}")
    assert (heard.status, heard.document["code"]) == (422, "invalid_request")
    assert [entry["field"] for entry in heard.document["errors"]] == ["value"]


@given(seconds=st.floats(0, 1e6, allow_nan=False))
def test_retry_after_is_whole_seconds_never_too_soon_and_never_zero(seconds: float) -> None:
    response = build_response(NotReadyError("wait", retry_after_s=seconds), request_id="r")
    assert int(response.headers["retry-after"]) == max(1, math.ceil(seconds))


def test_without_a_time_there_is_no_retry_after() -> None:
    assert "retry-after" not in build_response(NotReadyError("wait"), request_id="r").headers


texts = st.text(max_size=60)


@given(
    kind=st.sampled_from(sorted(BY_CODE.values(), key=lambda kind: kind.code)),
    detail=texts,
    hint=texts,
    log=st.lists(texts, max_size=3),
    request_id=st.text("abc-", min_size=1, max_size=20),
)
def test_whatever_an_error_says_stands_in_its_problem(
    kind: type[ProblemError], detail: str, hint: str, log: list[str], request_id: str
) -> None:
    response = build_response(kind(detail, hint=hint, log=log), request_id=request_id)
    problem = Problem.model_validate_json(bytes(response.body))
    assert (problem.code, problem.status, problem.title) == (kind.code, response.status_code, kind.title)
    assert (problem.detail, problem.hint, list(problem.log)) == (detail, hint, log)
    assert problem.request_id == request_id
    assert json.loads(bytes(response.body))["type"] == f"urn:meshwright:problem:{kind.code}"
