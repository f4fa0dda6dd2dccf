"""The accuracy page: tables of made-up rows, the page's marks, the table of all rows."""

from __future__ import annotations

import csv

import pytest

from tests.accuracy import __main__ as command
from tests.accuracy.evaluate import Prediction, Row
from tests.accuracy.goals import STEP_GOALS
from tests.accuracy.page import build_ranking_table, build_row_table, build_section, write_rows
from tests.accuracy.report import SetReport, report_set
from tests.accuracy.runs import LeftOut, read_collection
from tests.unit.accuracy.made_up import build_run

GOALS = {goal.name: goal for goal in STEP_GOALS}
OUT = LeftOut("bloom", "bloom-x", "nobody knows it", "https://example.org")


def build_report(name: str, pairs: list[tuple[float, float]]) -> tuple[list[Row], dict[str, SetReport]]:
    runs = [build_run(measured, set_name=name, id=str(place)) for place, (_, measured) in enumerate(pairs)]
    rows = [Row(run, Prediction(step_s=told)) for run, (told, _) in zip(runs, pairs, strict=True)]
    return rows, {name: report_set(rows, GOALS[name])}


def test_a_goal_is_reached_where_both_figures_are():
    _, reports = build_report("maxtext", [(1.04, 1.0), (1.0, 1.0)])
    text = build_section({}, reports, [OUT], "made up")
    assert "| MaxText dense bf16 (TPU) | 2 | 0 | 5.7% / 18.2% | – | 2.0% / 3.6% | +2.0% | 0 |" in text
    assert "| 5.0% / 15.0% | yes |" in text
    assert "- bloom, 1: nobody knows it (bloom-x)." in text


def test_a_90th_percentile_that_is_too_high_is_not_reached():
    _, reports = build_report("maxtext", [(1.0, 1.0)] * 8 + [(2.0, 1.0)] * 2)
    assert "| 0.0% / 100.0% | +0.0% | 0 | 5.0% / 15.0% | no |" in build_section({}, reports, [], "made up")


def test_order_is_judged_in_the_median_in_each_group_and_by_regret():
    _, reports = build_report("vtrain-multi", [(1.0, 1.0), (2.0, 2.0), (3.0, 3.0)])
    line = build_ranking_table({}, reports).splitlines()[-1]
    assert line.endswith("| 1.00 | 1.00 | 0.0% | 0.0% | τ ≥ 0.75, in each ≥ 0.5, regret ≤ 2% | yes |")


def test_a_row_names_its_source_layout_and_what_its_seconds_come_from():
    [run, *_] = [run for run in read_collection().runs if run.id == "sc21-t1-76.1B"]
    line = build_row_table([Row(run, Prediction(step_s=2 * (run.step_s or 0)))]).splitlines()[-1]
    assert line.startswith("| [sc21-t1-76.1B](https://arxiv.org/abs/2104.04473) | 128*a100:8 | dp:32,tp:8,pp:4 2×28")
    assert "interleaved 3 | 1792×2048 | float16 | full | 16.058* | 32.116 | +100.0% |" in line


def test_every_row_stands_in_the_csv_and_what_is_left_out_has_its_reason():
    rows, _ = build_report("maxtext", [(1.0, 2.0)])
    lines = list(csv.DictReader(write_rows(rows, [OUT]).splitlines()))
    assert [(line["set"], line["step_s"], line["predicted_s"], line["left_out"]) for line in lines] == [
        ("maxtext", "2", "1", ""),
        ("bloom", "", "", "nobody knows it"),
    ]


def test_the_command_prints_the_tables_of_the_sets_that_are_asked(capsys):
    assert command.main(["--set", "sc21", "--set", "korthikanti", "--rows", "--predictor", "constant"]) == 0
    told = capsys.readouterr().out
    assert "| SC21, table 1 (A100) | 10 | 0 |" in told
    assert told.count("arxiv.org/abs/2205.05198") == 8
    assert "vTrain" not in told


def test_the_page_is_not_written_from_some_sets_alone(capsys):
    with pytest.raises(SystemExit) as ended:
        command.main(["--write", "--set", "sc21"])
    assert ended.value.code == 2
    assert "leave out --set" in capsys.readouterr().err
