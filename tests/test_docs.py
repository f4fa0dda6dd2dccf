"""The documents: every table is the code's, every command and every Python block runs against a real agent."""

from __future__ import annotations

import importlib
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, cast, get_args

import httpx
import pytest
import typer

import meshwright
from meshwright import Client, cli, errors, testing
from meshwright.cli import health
from meshwright.wire.base import Basis
from meshwright.wire.health import HARDWARE, HOST_WORST_FIRST, State
from meshwright_agent import cli as agent_cli
from meshwright_agent.agent import DRAIN_TIMEOUT_S
from meshwright_agent.health.monitor import KINDS, STORE, WORKER
from meshwright_agent.health.xid import DRIVER
from meshwright_agent.supervisor.process import ChildSpec
from tests.agents import RunningAgent, start_agent
from tests.contract.openapi import SNAPSHOT
from tests.deploy.test_files import OF_SCRIPTS
from tests.documents import ROOT, Block, Command, Document, has_shape, list_printed, mask, read_settings
from tests.reference import PAGES, REQUESTS, write_page

_GLOBS = ("docs/*.md", "docs/*/*.md", "[a-z]*/[A-Z]*.md", "[A-Z]*.md")
PATHS = [path for glob in _GLOBS for path in sorted(ROOT.glob(glob))]
DOCUMENTS = {name: Document.read(name) for name in (path.relative_to(ROOT).as_posix() for path in PATHS)}
"""README.md is the last, since its scheduler releases the devices that other pages show."""
RUN = [document for document in DOCUMENTS.values() if document.blocks("python")]


def page(name: str) -> Document:
    return DOCUMENTS[f"docs/{name}.md"]


HOST, CPU, SYSTEM = "vm", "AMD EPYC", "Debian GNU/Linux 12 (bookworm)"
"""The machine that the documents' outputs come from."""

URL, SOCKET = "127.0.0.1:8790", "/run/meshwright/agent.sock"
LIMIT_S = 240.0

_RUN_BLOCKS = """
import json, sys
namespace = {"__name__": "__main__"}
for name, line, code in json.load(open(sys.argv[1])):
    exec(compile("\\n" * (line - 1) + code, name, "exec"), namespace)
    print("\\x1e", end="", flush=True)
"""


# ---- how printed output is compared ------------------------------------------------------------------------------


@pytest.mark.parametrize(("printed", "documented"), [
    ("all_reduce   814 MB/s   1.29 ms\n", "all_reduce  1.42 GB/s  723 µs"),
    ("4 of 64 threads · 1.48 TiB", "2 of 2 threads · 23.5 GiB"),
    ("0   cpu   ? / 2.94 GiB   ?   free", "0   cpu   ? / 2.94 GiB   0   free"),
    ('{"code":"x","request_id":"9030a05eb8fa0627"}', '{"code":"x",\n "request_id":"7fb8c610cf0dfae3"}'),
    ('{"a":1,"b":[2,3],"c":4}', '{"a":1,…,"c":4}'),
    (
        "run-01a1fd23937752eb2e2502b0f5…  2026-11-21 08:05:29 UTC",
        "run-01b2fd239377c06bfafe2502b0f5…  2026-11-22 18:05:29 UTC",
    ),
])  # fmt: skip
def test_figures_ids_times_and_folds_may_differ(printed: str, documented: str) -> None:
    assert has_shape(printed, documented)


@pytest.mark.parametrize(("printed", "documented"), [
    ("worker stopped, generation 2", "worker ready, generation 1"),
    ("0 cpu free\n1 cpu free\n", "0 cpu free\n"),
    ("0 cpu free\n", "0 cpu free\n1 cpu free\n"),
    ('{"a":1,"d":4}', '{"a":1,…,"c":4}'),
    ("mw1-3231df9ed3ea36febda8b9c14a05c9cf", "mw1-4231ab9ed3ea36febda8b9c14a05c9cf"),
    ("Traceback (most recent call last)", ""),
])  # fmt: skip
def test_words_and_lines_may_not(printed: str, documented: str) -> None:
    assert not has_shape(printed, documented)


# ---- what runs ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def host() -> Iterator[RunningAgent]:
    """An agent of our own: the documents release its devices."""
    with start_agent() as running:
        yield running


@pytest.fixture(scope="module")
def reader(host: RunningAgent) -> dict[str, str]:
    """The environment of a reader who has done what the documents say."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    kept = {key: text for key, text in os.environ.items() if not key.startswith(("MESHWRIGHT_", "COLUMNS", "PYTEST_"))}
    return {**kept, "PATH": path, "MESHWRIGHT_URL": host.url, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "8"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the reader works, with the files that the documents give a name."""
    here = tmp_path_factory.mktemp("reader")
    for block in (block for document in RUN for block in document.blocks("python")):
        if "file" in block.options:
            (here / block.options["file"]).write_text(block.text)
    return here


def move_here(text: str, host: RunningAgent) -> str:
    """Returns a documented text with this agent's addresses."""
    return text.replace(URL, httpx.URL(host.url).netloc.decode()).replace(SOCKET, str(host.uds))


def move_away(text: str, host: RunningAgent) -> str:
    """Returns what was printed here as the documents' machine would have; the default address is not exported."""
    seen = httpx.get(f"{host.url}/devices").json()
    text = text.replace(host.url, f"http://{URL}").replace(str(host.uds), SOCKET)
    text = text.replace(f" · libtpu {seen['software']['libtpu']}", "")  # of the tests; `make run` installs none
    text = text.replace(f"  export MESHWRIGHT_URL=http://{URL}\n", "")
    text = text.replace("worker busy,", "worker ready,")  # it is asked for its devices every few seconds
    text = re.sub(rf"\b{re.escape(seen['host']['name'])}\b", HOST, text)
    return text.replace(seen["cpu"]["model"] or CPU, CPU).replace(seen["host"]["operating_system"] or SYSTEM, SYSTEM)


def assert_shape(where: object, actual: str, expected: str) -> None:
    if not has_shape(actual, expected, has_figures=" --offline " in f"{where}"):
        shapes = f"{mask(expected)}\n{mask(actual)}"
        pytest.fail(f"{where} documents\n{expected}\nand what is printed is\n{actual}\nas shapes\n{shapes}")


@pytest.mark.parametrize("command", [c for d in DOCUMENTS.values() for c in d.commands()], ids=str)
def test_a_documented_command_prints_what_is_documented(
    command: Command, host: RunningAgent, reader: dict[str, str], folder: Path
) -> None:
    done = subprocess.run(
        ["bash", "-c", move_here(command.text, host)], cwd=folder, env=reader, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True, timeout=LIMIT_S,
    )  # fmt: skip
    assert_shape(f"{command}: {command.text}", move_away(done.stdout, host), command.output)


@pytest.mark.parametrize("document", RUN, ids=lambda document: document.name)
def test_documented_python_runs_and_prints_what_is_documented(
    document: Document, host: RunningAgent, reader: dict[str, str], folder: Path
) -> None:
    blocks = document.blocks()
    printed = run_blocks(blocks, host, reader, folder)
    for index, expected in list_printed(blocks).items():
        assert_shape(blocks[index], move_away(printed[index], host), expected.text)


def run_blocks(
    blocks: tuple[Block, ...], host: RunningAgent, reader: dict[str, str], folder: Path
) -> Mapping[int, str]:
    """Runs the python blocks that are no file, in one process; returns what each printed."""
    indices = [i for i, block in enumerate(blocks) if block.language == "python" and "file" not in block.options]
    steps = [(str(ROOT / blocks[i].document), blocks[i].line, move_here(blocks[i].text, host)) for i in indices]
    (folder / "blocks.json").write_text(json.dumps(steps))
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", _RUN_BLOCKS, "blocks.json"],
        cwd=folder,
        env=reader,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return dict(zip(indices, done.stdout.split("\x1e"), strict=False))


# ---- what the type checker says ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A module a document with its blocks at their lines, since later ones need earlier ones; and those with a name."""
    folder = tmp_path_factory.mktemp("modules")
    for document in RUN:
        lines: list[str] = []
        for block in document.blocks("python"):
            if "file" in block.options:
                (folder / block.options["file"]).write_text(block.text)
                continue
            lines += [""] * (block.line - 1 - len(lines)) + block.text.splitlines()
        name = re.sub(r"\W", "_", document.name.removesuffix(".md")).lower()
        (folder / f"{name}.py").write_text("\n".join(lines))
    return folder


@pytest.mark.exhaustive
def test_documented_python_has_the_types_that_it_needs(modules: Path) -> None:
    """pyright looks at the public types themselves, in `make lint`."""
    files = sorted(file.name for file in modules.glob("*.py"))
    assert {"readme.py", "docs_tutorials_python_client.py", "docs_tutorials_trainer.py", "train.py"} < set(files)
    program, cache = Path(sys.executable).with_name("mypy"), f"--cache-dir={ROOT}/.mypy_cache/documents"
    command = [program, "--strict", "--config-file=", cache, *files]
    done = subprocess.run(command, cwd=modules, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def test_every_block_says_what_it_is() -> None:
    for block in (block for document in DOCUMENTS.values() for block in document.blocks()):
        assert block.language in {"console", "python", "text", "sh"}, f"{block} is {block.language!r}"


def test_the_readme_has_a_scheduler_and_a_trainer_of_ten_lines() -> None:
    blocks = DOCUMENTS["README.md"].blocks("python")
    assert [block.options.get("file") for block in blocks] == ["schedule.py", "train.py"]
    for block in blocks:
        assert len([line for line in block.text.splitlines() if line.strip()]) <= 10, block


def test_the_two_commands_of_the_readme_are_there_and_start_the_agent_that_it_speaks_of() -> None:
    (block,) = [block for block in DOCUMENTS["README.md"].blocks("sh") if "make run" in block.text]
    assert [line.split("#")[0].strip() for line in block.text.splitlines()] == ["make run", "make test"]
    serve = shlex.split(next(line for line in list_recipe("run") if " serve " in line))
    assert serve[serve.index("--cpu-devices") + 1] == "8"
    assert f"127.0.0.1:{serve[serve.index('--port') + 1]}" == URL
    assert any("-m pytest" in line for line in list_recipe("test"))


def list_recipe(target: str) -> list[str]:
    done = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


# ---- what is compared --------------------------------------------------------------------------------------------


def test_every_route_is_listed(host: RunningAgent) -> None:
    paths = httpx.get(f"{host.url}/openapi.json").json()["paths"]
    there = {
        f"{method.upper()} {path}": each for path, operations in paths.items() for method, each in operations.items()
    }
    documented = []
    for row in page("reference/http-api").table("All routes"):
        routes = [route.split("?")[0] for route in re.findall(r"[A-Z]+ /[^ ]*", row[0])]
        fields = [field for route in routes for field in there.get(route, {}).get("parameters", ())]
        queried = {field["name"] for field in fields if field["in"] == "query"}
        assert set(re.findall(r"[?&](\w+)=", " ".join(row))) == queried, routes
        documented += routes
    assert sorted(documented) == sorted([*there, "GET /", "GET /docs", "GET /openapi.json"])


def test_the_body_of_each_route_has_a_table_of_its_fields() -> None:
    paths = json.dumps(json.loads(SNAPSHOT.read_text())["paths"])
    bodies = set(re.findall(r"schemas/(\w+Request|Acknowledgement)\b", paths))
    assert bodies - {"ReleaseRequest"} <= set(REQUESTS)  # which has no fields


def test_every_extra_is_listed() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    rows = {row[0]: row[1] for row in page("how-to/install").table("On one host")}
    assert list(rows) == list(extras)
    for extra in set(extras) - {"dev"}:
        assert rows[extra] == ", ".join(re.split("[<>=]", wanted)[0] for wanted in extras[extra])


def test_every_command_is_listed() -> None:
    documented = [row[0] for row in page("reference/cli").table("The meshwright command")]
    assert documented == [f"meshwright {name}" for name in cast(Any, typer.main.get_command(cli.app)).commands]


def test_the_exit_codes_are_listed() -> None:
    rows = page("reference/cli").table("Exit codes", "exit code")
    codes = {cli.OK, cli.FAILED, cli.NO_ANSWER, cli.BUG, cli.LEASE_LOST, cli.INTERRUPTED}
    assert {int(row[0]) for row in rows} == codes
    in_help = " ".join(str(cli.app.info.epilog).split())
    for code, meaning, of_agent in rows:
        assert f"{code} {meaning}" in in_help
        assert bool(of_agent) == (f"{code} " in (agent_cli.__doc__ or "").partition("Exit codes:")[2])


def test_the_exit_codes_of_check_are_listed() -> None:
    findings = ("healthy", "degraded", "unhealthy", "unknown", "initializing", "no_answer")
    expected = [[style, *(str(codes[finding]) for finding in findings)] for style, codes in health.EXIT_CODES.items()]
    assert page("how-to/check-health").table("Formats of node checks") == expected


def test_the_times_of_a_child_are_those_that_it_is_given() -> None:
    spec = {field.name: field.default for field in fields(ChildSpec)}
    text = " ".join(page("explanation/architecture").text.split())
    assert "{stop_grace_s:g} s, {term_grace_s:g} s, {reap_wait_s:g} s".format(**spec) in text
    assert "| grace after a cancel | {cancel_grace_s:g} s |".format(**spec) in text
    assert "({backoff_initial_s:g} s … {backoff_max_s:g} s)".format(**spec) in text
    assert f"{spec['crash_budget']} crashes within {spec['crash_window_s'] / 60:g} minutes" in text
    assert f"(within {DRAIN_TIMEOUT_S:g} s)" in text


def test_settings_rules_of_health_and_requests_are_those_of_the_agent() -> None:
    for path in PAGES:
        assert write_page(path) == path.read_text(), "python -m tests.reference --write"


def test_the_health_components_and_states_are_those_of_the_agent(host: RunningAgent) -> None:
    components = {re.sub(r"\d+$", "N", part["name"]) for part in httpx.get(f"{host.url}/health").json()["components"]}
    assert {row[0] for row in page("reference/health").table("Components")} == components
    assert {row[0] for row in page("reference/health").table("States")} == set(get_args(State))
    assert f"worst component: {', '.join(HOST_WORST_FIRST)}" in page("reference/health").section("States")


def test_the_parts_of_accelerators_are_those_that_a_look_can_make() -> None:
    rows = {row[0].removesuffix(":N") for row in page("reference/health").table("Parts of accelerators")}
    assert rows == set(KINDS) - {DRIVER, WORKER, STORE, "device"}


def test_the_components_that_take_a_node_out_of_service_are_those_that_are_looked_at() -> None:
    (listed,) = re.findall(r"evaluates the components (.*?) \(`HARDWARE`", page("how-to/check-health").text, re.DOTALL)
    assert set(re.findall(r"`(\w+)`", listed)) == HARDWARE


def test_the_kinds_of_evidence_are_those_of_the_wire() -> None:
    assert [row[0] for row in page("explanation/evidence").table("Basis")] == list(get_args(Basis))


@pytest.mark.parametrize(("side", "package"), [("Service", "meshwright_agent"), ("Client", "meshwright")])
def test_the_layers_are_those_that_are_enforced(side: str, package: str) -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = [contract["layers"] for contract in contracts if contract["type"] == "layers"]
    after = page("explanation/architecture").section("Layers").partition(f"{side}, from the top:")[2]
    block = after.split("```")[1].removeprefix("text\n")
    documented = [re.split(r" {2,}", line)[0] for line in block.splitlines()]
    enforced = [layer.replace(f"{package}.", "") for layer in layers if layer.startswith(f"{package}.")]
    assert documented == enforced != []


def test_the_error_codes_are_those_of_the_error_tree_and_each_says_what_to_do() -> None:
    rows = page("reference/errors").table("Error codes")
    expected = [[code, str(known.status), known.error.__name__] for code, known in errors.CODES.items()]
    assert sorted(row[:3] for row in rows) == sorted(expected)
    others = page("reference/errors").table("Classes without a code")
    assert all(row[-1] for row in (*rows, *others))
    without_code = {row[0] for row in others}
    assert without_code == {
        kind.__name__
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.MeshwrightError) and not getattr(kind, "code", "")
    } - {"MeshwrightError", "ProblemError"}


def test_the_pages_name_everything_that_is_public() -> None:
    methods = [name for name in dir(Client) if not name.startswith("_")]
    fake = [name for name in dir(testing.FakeAgent) if not name.startswith("_")]
    public = {*meshwright.__all__, "build_mesh", "mesh_fingerprint", *testing.__all__, *methods, *fake}
    names = ("tutorials/python-client", "reference/client", "reference/errors", "how-to/test-your-code")
    text = "".join(page(name).text for name in names)
    missing = {name for name in public if not re.search(rf"\b{name}\b", text)}
    assert not missing, f"{names} do not mention {', '.join(sorted(missing))}"


def test_the_library_page_lists_what_each_module_has() -> None:
    rows = {row[0]: row[1] for row in page("reference/library").table("Modules")}
    assert list(rows) == [f"meshwright.{name}" for name in ("mesh", "placement", "devices", "parallelism", "verify")]
    for module, text in rows.items():
        assert set(importlib.import_module(module).__all__) <= set(re.findall(r"\w+", text)), module


def test_every_variable_is_documented() -> None:
    sources = [*(ROOT / "client").rglob("*.py"), *(ROOT / "service").rglob("*.py")]
    read = {name for file in sources for name in re.findall(r"\bMESHWRIGHT_[A-Z][A-Z_]*[A-Z]\b", file.read_text())}
    assert read <= list_variables()


def list_variables() -> set[str]:
    return set(read_settings()) | {row[0] for row in page("reference/client").table("Variables")}


# ---- all documents -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("document", DOCUMENTS.values(), ids=lambda document: document.name)
def test_links_lead_somewhere(document: Document) -> None:
    for link in document.links():
        path, _, anchor = link.partition("#")
        if path.startswith(("http://", "https://")):
            continue
        target = (ROOT / document.name).parent / path if path else ROOT / document.name
        assert target.exists(), f"{document.name} links to {link}"
        name = str(target.resolve().relative_to(ROOT.resolve()))
        assert not anchor or anchor in Document.read(name).anchors(), f"{document.name} links to {link}"


@pytest.mark.parametrize("document", DOCUMENTS.values(), ids=lambda document: document.name)
def test_variables_that_a_document_names_exist(document: Document) -> None:
    known = list_variables() | OF_SCRIPTS
    named = set(re.findall(r"\bMESHWRIGHT_[A-Z][A-Z_]*[A-Z]\b", document.text))
    assert named <= known, f"{document.name} names {named - known}"


def test_private_words_do_not_come_back() -> None:
    """Words that code and pages no longer use; the list grows as more go."""
    words = r"reckon|\bheed|mourner|doorkeeper|obituar|passes over|whoever|told otherwise|give way|looked at no"
    gone = re.compile(rf"{words}|stands for all|could not be looked at|is no mesh|somebody has", re.IGNORECASE)
    roots = ("client/meshwright", "service/meshwright_agent", "docs", "deploy", "tools")
    files = [path for root in roots for path in (ROOT / root).rglob("*.[pms][ydh]") if "_build" not in path.parts]
    found = [f"{path}: {match[0]}" for path in files for match in gone.finditer(path.read_text())]
    assert len(files) > 200
    assert not found
