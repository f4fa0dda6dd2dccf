from __future__ import annotations

import contextlib
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.errors import InvalidRequestError
from meshwright.targets import TargetSpec

chips = st.from_regex(r"[a-z0-9]{1,8}([.-][a-z0-9]{1,8}){0,2}", fullmatch=True)
specs = st.builds(
    TargetSpec, chip=chips, shape=st.lists(st.integers(1, 10**6), max_size=3).map(tuple),
    granules=st.integers(1, 10**6), twisted=st.sampled_from([None, True, False]),
)  # fmt: skip


@given(specs)
def test_parse_after_print_is_identity_in_any_case(spec: TargetSpec) -> None:
    assert TargetSpec.parse(str(spec)) == spec
    assert TargetSpec.parse(f"  {str(spec).upper()} ") == spec


@pytest.mark.parametrize(("text", "spec", "printed"), [
    ("v5p:4x4x4", TargetSpec("v5p", (4, 4, 4)), None), ("2*v5e:16x16", TargetSpec("v5e", (16, 16), 2), None),
    ("64*h100:8", TargetSpec("h100", (8,), 64), None), ("cpu:8", TargetSpec("cpu", (8,)), None),
    ("tpu7x:2x2x1", TargetSpec("tpu7x", (2, 2, 1)), None), ("v5p-17920", TargetSpec("v5p-17920"), None),
    ("V5LitePod-256", TargetSpec("v5litepod-256"), "v5litepod-256"), ("h100", TargetSpec("h100"), None),
    ("1*h100:8", TargetSpec("h100", (8,)), "h100:8"),
    ("v4:4x4x8_twisted", TargetSpec("v4", (4, 4, 8), twisted=True), None),
    ("v4:4x4x8_untwisted", TargetSpec("v4", (4, 4, 8), twisted=False), None),
    ("V4-256_Twisted", TargetSpec("v4-256", twisted=True), "v4-256_twisted"),
    (" 2 * h100 : 8 ", TargetSpec("h100", (8,), 2), "2*h100:8"), ("v5e:4 x 4", TargetSpec("v5e", (4, 4)), "v5e:4x4"),
    ("H100 SXM:8", TargetSpec("h100-sxm", (8,)), "h100-sxm:8"),
    ("a100_pcie:4", TargetSpec("a100-pcie", (4,)), "a100-pcie:4"),
])  # fmt: skip
def test_targets_as_people_write_them(text: str, spec: TargetSpec, printed: str | None) -> None:
    assert TargetSpec.parse(text) == spec
    assert str(spec) == (printed or text)


@pytest.mark.parametrize(("text", "piece"), [
    ("", "empty"), ("  ", "empty"), ("x" * 81, "81 characters"), (":8", "chip ''"), ("2*", "chip ''"),
    ("v5p:", "'' where a number"), ("v5p:4x", "'' where a number"), ("v5p:4xx4", "'' where a number"),
    ("v5p:4x4x4x4", "4 dimensions"), ("v5p:4*4", "'v5p:4' where a number"), ("v5p:4×4", "'4×4' where a number"),
    ("h100:8:8", "'8:8' where a number"), ("h100:1.5", "'1.5' where a number"), ("h100:-8", "'-8' where a number"),
    ("h100:٨", "'٨' where a number"), ("h100:10000000", "'10000000' where a number"), ("h100:0", "number 0"),
    ("0*h100", "number 0"), ("2*3*h100", "'2*3' where a number"), ("*h100", "'' where a number"),
    ("h100/8", "chip 'h100/8'"), ("h100,v5e", "each target by itself"), ("v4:4x4x8_bent", "'8_bent' where a number"),
])  # fmt: skip
def test_what_is_no_target_is_refused_with_the_piece_and_an_example(text: str, piece: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        TargetSpec.parse(text)
    assert piece in caught.value.detail
    assert [entry["field"] for entry in caught.value.errors] == ["target"]
    assert '"64*h100:8"' in caught.value.hint


@given(st.text(max_size=100))
def test_any_text_is_a_target_that_prints_back_or_a_refusal(text: str) -> None:
    spec = None
    with contextlib.suppress(InvalidRequestError):
        spec = TargetSpec.parse(text)
    assert spec is None or TargetSpec.parse(str(spec)) == spec


def test_the_grammar_needs_only_the_standard_library() -> None:
    code = "import sys, meshwright.targets; print(sorted(set(sys.modules) & {'pydantic', 'httpx', 'numpy', 'jax'}))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
