"""`make step-table` and `make verify-steps` on made-up answers: the published rows, the tables, what is kept."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from meshwright.planning.parallelism import check_divides
from meshwright.spec import MeshSpec
from meshwright.wire.compiling import CompileJob
from meshwright.wire.model import TrainingSpec
from meshwright.wire.verification import StepEstimate, Verification, VerifiedCollective
from tests.compiler.steps import estimates
from tests.compiler.steps.__main__ import report
from tests.compiler.steps.answers import Answers, StepName, build_key
from tests.compiler.steps.cases import CASES, TINY, Case
from tests.compiler.steps.estimate_table import Row as EstimateRow
from tests.compiler.steps.estimate_table import build_section, summarize
from tests.compiler.steps.estimates import estimate
from tests.compiler.steps.published import Published, build_model, count_flops, derive_step_s, read_published
from tests.compiler.steps.weigh import Row, build_tables, sum_traffic, weigh_case

PUBLISHED = {each.row: each for each in read_published()}
ROWS = [each for each in PUBLISHED.values() if each.case is not None]
CASE = Case("cpu:4", "fsdp:2,tp:2", TINY, TrainingSpec(global_batch=16, sequence_length=1024))
GIB = 2**30


def verify(peak_gib: float, estimated_s: float | None = None, **other: object) -> Verification:
    told = None
    if estimated_s is not None:
        told = StepEstimate(total_s=estimated_s, attention_s=0.5, clock_hz=1e9, limits="")
    return Verification.model_validate(
        {
            "status": "verified",
            "peak_memory_bytes": int(peak_gib * GIB),
            "parameter_count": 10,
            "estimated_step_s": estimated_s,
            "estimate": told,
            "compile_s": 3.0,
            "versions": {"jax": "0.10.2"},
            **other,
        }
    )


class Compiler:
    """Answers what it was given, and remembers what it was asked."""

    def __init__(self, *answers: Verification) -> None:
        self.answers = list(answers)
        self.asked: list[StepName] = []

    def __call__(self, step: StepName, job: CompileJob) -> Verification:
        self.asked.append(step)
        return self.answers.pop(0)


def test_every_published_row_is_a_case_or_says_why_not() -> None:
    assert sorted(PUBLISHED) == list(range(51))
    assert len(ROWS) == 31
    assert all((each.case is None) == bool(each.left_out) for each in PUBLISHED.values())
    assert all(each.source.startswith("https://") for each in PUBLISHED.values())


@pytest.mark.parametrize("published", ROWS, ids=lambda each: each.name)
def test_a_published_row_can_be_asked(published: Published) -> None:
    case = published.case
    assert case is not None
    mesh = MeshSpec.parse(case.mesh)
    sizes = dict(zip(mesh.names, mesh.sizes, strict=True))
    check_divides(case.model, case.training, sizes)
    assert 0.1 < published.measured_s < 200
    assert int(published.fields["chips"]) * (2 if "tpu7x" in case.target else 1) == math.prod(mesh.sizes)


def test_the_count_of_flops_agrees_with_rows_that_give_seconds_and_flops() -> None:
    both = [each for each in ROWS if each.fields["step_s"] and each.fields["tflops_per_chip"]]
    assert len(both) == 10
    for each in both:
        assert each.case is not None
        derived_s, basis = derive_step_s({**each.fields, "step_s": ""}, each.case)
        assert derived_s == pytest.approx(each.measured_s, rel=1e-3)
        assert (each.derived, basis) == ("", "FLOP/s")


def test_the_count_of_flops_is_a_hand_count() -> None:
    training = TrainingSpec(global_batch=1, sequence_length=2048)
    model = build_model("maxtext-scale-16")
    layer = 3 * 4096 * 28672 + 4 * 4096 * 64 * 128
    by_hand = 6 * 2048 * (32 * layer + 4096 * 32000) + 12 * 2048 * 2048 * 64 * 128 * 32
    assert count_flops(model, training, is_causal=False) == by_hand
    assert count_flops(model, training, is_causal=True) == by_hand - 6 * 2048 * 2048 * 64 * 128 * 32
    assert PUBLISHED[40].measured_s == pytest.approx(13.47, abs=0.01), "as compiler_probe.json derived it"


def test_seconds_are_derived_from_tokens_where_nothing_else_was_told() -> None:
    assert PUBLISHED[37].derived == "tokens/s"
    assert PUBLISHED[37].measured_s == pytest.approx(4 * 4096 / 692)


def test_an_answer_is_kept_and_asked_once(tmp_path: Path) -> None:
    compiler = Compiler(verify(1.0), verify(2.0))
    job = CASE.build_job()
    for _ in range(2):
        answers = Answers(tmp_path / "kept.jsonl", compiler)
        assert not (compiler.asked and not answers.has("ours", job))
        assert answers.find("ours", job).peak_memory_bytes == GIB
    assert answers.find("other", job).peak_memory_bytes == 2 * GIB
    assert compiler.asked == ["ours", "other"]


def test_a_changed_job_is_asked_again() -> None:
    job = CASE.build_job()
    assert build_key("ours", job) == build_key("ours", CASE.build_job())
    changed = job.model_copy(update={"capacity_bytes": 5})
    assert len({build_key("ours", job), build_key("other", job), build_key("ours", changed)}) == 3


def test_groups_are_not_kept_and_what_aborted_can_be_asked_again(tmp_path: Path) -> None:
    collective = VerifiedCollective(axis="tp", op="all-gather", count=1, bytes=8, group_size=2, groups="{{0,1}}" * 999)
    compiler = Compiler(verify(1.0, status="aborted", collectives=(collective,)), verify(1.0))
    answers = Answers(tmp_path / "kept.jsonl", compiler)
    job = CASE.build_job()
    assert answers.find("ours", job).collectives[0].groups == ""
    assert len((tmp_path / "kept.jsonl").read_text()) < 1000
    answers.forget("verified")
    assert answers.has("ours", job)
    answers.forget("aborted")
    assert not answers.has("ours", job)
    assert answers.find("ours", job).status == "verified"


def test_peaks_that_differ_by_over_a_tenth_are_complained_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    near, far = Row(CASE, verify(1.0), verify(1.09)), Row(CASE, verify(1.2), verify(1.0))
    assert report([near]) == 0
    assert report([near, far], tmp_path / "page.md") == 1
    assert "our peak is 1.200 of the other's; it may be off by 10%" in capsys.readouterr().err
    page = (tmp_path / "page.md").read_text()
    assert "| cpu:4 | fsdp:2,tp:2 | 0.1b | 16×1024 | full | 1.200 | 1.000 | 1.200 |" in page
    assert "1 of 2 peaks agree within 10%; the worst ratio is 1.200." in page


def test_other_parameters_or_no_result_are_complained_of() -> None:
    [complaint] = Row(CASE, verify(1.0, parameter_count=11), verify(1.0)).list_complaints()
    assert complaint == f"{CASE.name}: ours has 11 parameters, the other 10"
    refused = verify(1.0, status="does_not_fit", reason="too large", peak_memory_bytes=None)
    row = Row(CASE, refused, verify(1.0))
    assert row.list_complaints() == [f"{CASE.name}: ours is does_not_fit: too large"]
    assert "| – | 1.000 | – |" in build_tables([row])


def test_traffic_is_what_a_device_sends_whichever_collective_does_it() -> None:
    def build(op: str, axis: str = "fsdp") -> VerifiedCollective:
        told = {"axis": axis, "op": op, "count": 1, "bytes": 100.0, "group_size": 4}
        return VerifiedCollective.model_validate(told)

    scattered = sum_traffic([build("reduce-scatter"), build("all-gather")])
    assert scattered == sum_traffic([build("all-reduce")]) == {"fsdp": 150.0}
    assert sum_traffic([build("collective-permute", "tp"), build("all-to-all", "tp")]) == {"tp": 175.0}


def test_a_case_is_compiled_with_both_steps(tmp_path: Path) -> None:
    row = weigh_case(CASE, Answers(tmp_path / "kept.jsonl", Compiler(verify(1.0), verify(2.0))))
    assert row.ratio == 0.5


def test_the_cases_cover_splits_remats_and_targets() -> None:
    assert len({repr(case) for case in CASES}) == len(CASES)
    axes = {name for case in CASES for name in MeshSpec.parse(case.mesh).names}
    assert axes == {"dp", "fsdp", "tp", "cp", "ep"}
    assert {case.training.remat for case in CASES} == {"none", "minimal", "full"}
    assert {case.target for case in CASES} == {"v5e:2x2", "v5p:2x2x2", "2*v5e:2x2", "cpu:4"}


def test_a_row_tells_the_error_of_the_estimate() -> None:
    row = EstimateRow(PUBLISHED[8], verify(10.0, 17.182 * 1.1))
    assert row.error == pytest.approx(0.1)
    section = build_section([row])
    assert "| gpt3-175b | v6e:16x16 | fsdp:256 | 768×2048 | full |" in section
    assert "| 17.18 | 18.90 | +10.0% | 0.50 | 10.0 | 3 |\n" in section
    assert section.endswith("With jax 0.10.2.\n")


def test_derived_seconds_and_the_nearest_remat_are_marked() -> None:
    section = build_section([EstimateRow(PUBLISHED[row], verify(1.0, 30.0)) for row in (12, 39)])
    assert "| 64×8192 | full† | 17.79 | 30.00 |" in section
    assert "| 1536×2048 | full | 10.31* | 30.00 |" in section
    told = "custom: layer inputs, q, k, v offloaded"
    assert f"- † Rows 12 ran with `{told}`; the nearest that the step has is `full`.\n" in section


def test_what_does_not_compile_and_what_is_left_out_stand_there_with_their_reasons() -> None:
    refused = Verification(status="does_not_fit", reason="needs 20 GiB of 16 GiB.")
    section = build_section([EstimateRow(PUBLISHED[row], None if row != 40 else refused) for row in (9, 21, 40)])
    assert "| 13.47* | does not fit | – | – | – | – |" in section
    assert "- Row 40 has no estimate: does not fit: needs 20 GiB of 16 GiB." in section
    assert "- Left out, rows 9, 21: fp8 or int8." in section
    assert "None of 1 rows has an estimate." in section


def test_the_median_and_the_worst_error_are_of_their_sizes() -> None:
    factors = {8: 1.1, 10: 0.7, 11: 0.98}
    rows = [EstimateRow(PUBLISHED[row], verify(1.0, PUBLISHED[row].measured_s * by)) for row, by in factors.items()]
    assert summarize(rows) == (
        "3 of 3 rows have an estimate: median error 10.0%, worst -30.0% (row 10); with its sign, median -2.0%."
    )


def test_only_wanted_rows_are_asked_and_a_table_without_all_is_not_complete(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compiler = Compiler(verify(1.0, 17.0))
    answers = Answers(tmp_path / "kept.jsonl", compiler)
    rows = [estimate(PUBLISHED[row], answers, {12}) for row in (9, 12, 13)]
    assert [row.answer is None for row in rows] == [True, False, True]
    assert compiler.asked == ["ours"]
    assert estimates.report(rows) == 1
    assert capsys.readouterr().err.endswith("not asked: rows 13\n")
    assert estimates.report(rows[:2], tmp_path / "page.md") == 0
    assert "<!-- step-estimates -->" in (tmp_path / "page.md").read_text()


@pytest.mark.parametrize("remat", ["none", "minimal", "full"])
def test_the_other_step_keeps_no_gathered_weights_for_backward(remat: str) -> None:
    import jax
    import numpy as np

    from tests.compiler.steps.other import build_step

    mesh = jax.sharding.Mesh(np.array(jax.devices()[:4]), ("fsdp",))
    training = TrainingSpec.model_validate({**CASE.training.model_dump(), "remat": remat})
    step = build_step(CASE.model, training, mesh)
    text = str(jax.make_jaxpr(step.function)(*step.arguments))
    layers, width, size = TINY.num_hidden_layers, TINY.hidden_size, TINY.intermediate_size
    assert f"bf16[{width},{size}]" in text, "a layer's matrix is gathered"
    assert f"bf16[{layers},{width},{size}]" not in text, "those of all layers are not"
