"""Memory of published runs and of our own compiled step, predicted: fitted without a fold, asked about the fold.

Rule: what a framework does with its state is known and stands here with its source; what it holds besides is fitted,
few constants a framework and platform. Prints the tables of the accuracy page's part on memory; with `--write` the
constants that were fitted on all rows go to `memory.csv`.

    python -m tests.accuracy.memory
"""

from __future__ import annotations

import argparse
import csv
import functools
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from meshwright.planning.cost.kept import Keeping, read_keepings
from meshwright.planning.cost.layout import REMAT_NONE
from meshwright.planning.cost.memory import Circumstances, MemoryParts, price_stages
from meshwright.planning.cost.state import State, build_state
from meshwright.planning.cost.step_time import Execution
from meshwright.planning.cost.work import build_work
from meshwright.wire.model import ModelSpec
from tests.accuracy.evaluate import Prediction, Predictor
from tests.accuracy.metrics import Errors, judge_memory, summarize_errors
from tests.accuracy.peaks import Peak, read_answered, read_refused
from tests.accuracy.run import Run
from tests.accuracy.runs import read_runs

Key = tuple[str, str]
"""Framework and platform, as `memory.csv` has them."""
Constants = Mapping[Key, Keeping]

GIB: Final = 2**30
SOFT: Final = 0.03
"""Relative error from which a row pulls the fit less and less: a few per cent are what is hoped for."""

FITTED: Final[Mapping[Key, tuple[str, ...]]] = {
    ("xla", "tpu"): ("layer", "gathered", "logits_bytes"),
    ("xla", "gpu"): ("layer", "gathered", "logits_bytes"),
    ("megatron-core", "gpu"): ("logits_bytes", "weight_gradient_bytes"),
    ("torchtitan", "gpu"): ("logits_bytes", "layer"),
    ("megatron-lm-2021", "gpu"): ("activation", "layer", "reserve_bytes"),
}

_LEAST: Final = {"activation": 1.0}
"""What a constant cannot be below: a kept byte takes a byte."""

CARD_BYTES: Final = 80 * GIB
"""Of the A100s of BLOOM. Source: 81,920 MiB in NVIDIA's driver; its log has a run at 79 GB."""

_SCALE: Final = {"reserve_bytes": 1e9}


@dataclass(frozen=True, eq=False)
class Question:
    """One step whose bytes are known, and how its memory is priced.

    Attributes:
        name: of the row.
        key: whose constants.
        measured_bytes: of the fullest device.
        price: constants → parts of each kind of stage.
        model: fold; chip: another.
    """

    name: str
    key: Key
    measured_bytes: float
    price: Callable[[Keeping], tuple[MemoryParts, ...]]
    model: str
    chip: str


# ---- our own step --------------------------------------------------------------------------------------


def ask_peak(peak: Peak) -> Question:
    """Returns the question of a compiled case."""
    model, training, layout = peak.case.model, peak.case.training, peak.layout
    work, state = build_work(model, training.sequence_length), build_state(training)
    execution = Execution(fused_attention=training.attention == "flash")

    def price(keeping: Keeping) -> tuple[MemoryParts, ...]:
        more = Circumstances(training.capacity_factor, whole_parameters=count_positions(model))
        return price_stages(work, layout, state, keeping, execution, more)

    measured = peak.peak_bytes or peak.needed_bytes or 0
    return Question(
        f"{peak.id} {peak.case.name}", ("xla", peak.platform), measured, price, model.name or "", peak.chip.family
    )


def count_positions(model: ModelSpec) -> int:
    """Returns the parameters of learned positions, which our own step leaves whole."""
    return (model.max_position_embeddings or 0) * model.hidden_size if model.positions == "learned" else 0


# ---- published runs ------------------------------------------------------------------------------------

_STATES: Final[Mapping[str, State]] = {
    "megatron-core": State(2, 4, 12, is_spread=False),
    "torchtitan": State(4, 4, 8),
    "megatron-lm-2021": State(2, 4, 12, is_spread=False),
    "deepspeed-float16": State(2, 2, 16, is_spread=False),
    "deepspeed-bfloat16": State(2, 6, 12, is_spread=False),
}
"""Bytes a parameter.

Source: Korthikanti et al. (18 in all) and Megatron-LM's docs/source/api-guide/dist_optimizer (2 and 4 whole, 12 cut);
PyTorch's FSDP2 (float32 weights, gradients and moments, all cut); DeepSpeed's runtime/zero/stage_1_and_2.py (float16:
a float32 copy of the part's gradients) and runtime/bf16_optimizer.py (all gradients in float32 too)."""


def ask_run(run: Run) -> Question:
    """Returns the question of a published run."""
    work = build_work(run.model, run.sequence_length)
    layout = replace(run.layout, remat=REMAT_NONE) if run.recompute == "selective" else run.layout
    is_fused = run.practice != "megatron-lm-2021" or run.recompute == "selective"
    execution = Execution(
        sequence_parallel=run.sequence_parallel,
        fused_attention=is_fused,
        weights_kept=run.practice == "torchtitan" and run.layout.pp != 1,
    )

    def price(keeping: Keeping) -> tuple[MemoryParts, ...]:
        more = Circumstances(1.0, edge_layers=run.edge_layers)
        return price_stages(work, layout, find_state(run), keeping, execution, more)

    return Question(run.id, (run.practice, "gpu"), run.peak_bytes or 0, price, run.fold, run.chip)


_ask_once = functools.cache(ask_run)


def find_state(run: Run) -> State:
    """Returns what a run's framework keeps; DeepSpeed's, of BLOOM, by its type."""
    name = f"deepspeed-{run.compute_dtype}" if run.set_name == "bloom" else run.practice
    return replace(_STATES[name], zero_stage=run.zero_stage)


# ---- fits ----------------------------------------------------------------------------------------------


def fit(questions: Sequence[Question]) -> dict[Key, Keeping]:
    """Returns the constants of each framework that has rows; of others those of the table."""
    found = dict(read_keepings())
    for key in {question.key for question in questions}:
        found[key] = fit_keeping(found[key], FITTED[key], [q for q in questions if q.key == key])
    return found


def fit_keeping(base: Keeping, names: Sequence[str], questions: Sequence[Question]) -> Keeping:
    """Returns constants, none below 0, that come nearest by relative error; far rows pull less (soft L1)."""
    rows = [find_slopes(question) / question.measured_bytes for question in questions]

    def measure(values: Any) -> Any:
        return [float(np.max(row[:, 0] + row[:, 1:] @ values)) - 1 for row in rows]

    least = [_LEAST.get(name, 0.0) for name in names]
    begin = [
        max(getattr(base, name) / _SCALE.get(name, 1.0), low + 0.1) for name, low in zip(names, least, strict=True)
    ]
    found = least_squares(measure, begin, bounds=(least, np.inf), loss="soft_l1", f_scale=SOFT).x
    return replace(base, **{n: float(v) * _SCALE.get(n, 1.0) for n, v in zip(names, found, strict=True)})


@functools.cache
def find_slopes(question: Question) -> NDArray[np.float64]:
    """Returns bytes of each kind of stage [stages, 1 + constants]: without constants, and more a unit of each.

    A stage's bytes are linear in all constants that are fitted.
    """
    names = FITTED[question.key]
    none = replace(read_keepings()[question.key], **dict.fromkeys(names, 0.0))
    ones = [replace(none, **{name: _SCALE.get(name, 1.0)}) for name in names]
    columns = [np.asarray([float(s.total_bytes) for s in question.price(each)]) for each in (none, *ones)]
    return np.stack([columns[0], *(column - columns[0] for column in columns[1:])], axis=1)


def predict(question: Question, constants: Constants) -> float:
    """Returns the bytes of the fullest device."""
    keeping, slopes = constants[question.key], find_slopes(question)
    values = [getattr(keeping, name) / _SCALE.get(name, 1.0) for name in FITTED[question.key]]
    return float(np.max(slopes[:, 0] + slopes[:, 1:] @ np.asarray(values)))


Fold = Callable[[Question], str]


def predict_left_out(questions: Sequence[Question], fold: Fold, also: Sequence[Question] = ()) -> list[float]:
    """Returns predicted bytes of each, with constants fitted without its fold.

    Args:
        questions: judged.
        fold: what is left out together.
        also: fitted on but not judged; left out with their folds too.
    """
    fits: dict[str, dict[Key, Keeping]] = {}
    for name in dict.fromkeys(map(fold, questions)):
        fits[name] = fit([q for q in (*questions, *also) if fold(q) != name])
    return [predict(q, fits[fold(q)]) for q in questions]


def predict_state(questions: Iterable[Question]) -> list[float]:
    """Returns the null predictor's bytes: the state alone."""
    return [max(float(s.state_bytes) for s in q.price(read_keepings()[q.key])) for q in questions]


def predict_textbook(questions: Iterable[Question]) -> list[float]:
    """Returns the textbook's bytes: the state and kept activations."""
    stages = [q.price(replace(read_keepings()[q.key], activation=1.0)) for q in questions]
    return [max(float(s.state_bytes + s.activations) for s in each) for each in stages]


def _fit_runs(runs: Sequence[Run]) -> dict[Key, Keeping]:
    return fit(
        [_ask_once(run) for run in runs if run.peak_bytes and (run.practice, "gpu") in FITTED and is_fitted(run)]
    )


def is_fitted(run: Run) -> bool:
    """Whether constants are fitted on a run: not on a paper's own formulas."""
    return run.memory_kind != "calculated"


def _predict_runs(constants: dict[Key, Keeping], runs: Sequence[Run]) -> list[Prediction]:
    return [_predict(constants, run) for run in runs]


def _predict(constants: dict[Key, Keeping], run: Run) -> Prediction:
    if (run.practice, "gpu") not in FITTED:
        return Prediction()
    question = _ask_once(run)
    peak = predict(question, constants) if is_fitted(run) else predict_textbook([question])[0]
    return Prediction(peak_bytes=peak, runs_out=peak > CARD_BYTES)


MEMORY: Final = Predictor("memory", _fit_runs, _predict_runs)
"""For `tests.accuracy.evaluate`: fitted fold by fold, on runs whose peak is told."""


# ---- tables --------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.accuracy.memory", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the constants fitted on all rows")
    parser.add_argument("--rows", action="store_true", help="print every row")
    asked = parser.parse_args(arguments)
    show_peaks(has_rows=asked.rows)
    show_runs(has_rows=asked.rows)
    if asked.write:
        write_constants()
    return 0


def show_peaks(*, has_rows: bool) -> None:
    """Prints our own step's table: each platform and both, left out by model and by chip."""
    answered, refused = ([ask_peak(peak) for peak in read()] for read in (read_answered, read_refused))
    measured = [q.measured_bytes for q in answered]
    print("| our own step | rows | median | p90 | worst | bias |\n| --- | --- | --- | --- | --- | --- |")
    by_model = predict_left_out(answered, lambda q: q.model, refused)
    by_chip = predict_left_out(answered, lambda q: q.chip if q.key[1] == "tpu" else q.model, refused)
    for name, predicted in (
        ("state alone", predict_state(answered)),
        ("state and kept activations", predict_textbook(answered)),
        ("model left out", by_model),
        ("chip left out (TPU)", by_chip),
    ):
        for platform in ("tpu", "gpu", ""):
            chosen = [i for i, q in enumerate(answered) if platform in ("", q.key[1])]
            print(_write(f"{name}, {platform or 'all'}", _summarize(predicted, measured, chosen)))
    needed = predict_left_out(refused, lambda q: q.model, answered)
    print(_write("refused, model left out", summarize_errors(needed, [q.measured_bytes for q in refused])))
    if has_rows:
        _print_rows([*answered, *refused], [*by_model, *needed])


def show_runs(*, has_rows: bool) -> None:
    """Prints the tables of published runs, and verdicts on BLOOM's."""
    print("\n| published runs | rows | median | p90 | worst | bias |\n| --- | --- | --- | --- | --- | --- |")
    for name in ("simumax", "torchtitan", "bloom", "korthikanti"):
        questions = [ask_run(run) for run in read_runs(name) if run.peak_bytes]
        measured = [q.measured_bytes for q in questions]
        rows = MEMORY.evaluate(read_runs("simumax", "torchtitan", "bloom", "korthikanti"), sets=(name,))
        predicted = [row.prediction.peak_bytes or 0.0 for row in rows if row.run.peak_bytes]
        print(_write(f"{name}, state alone", summarize_errors(predict_state(questions), measured)))
        print(_write(f"{name}, state and kept activations", summarize_errors(predict_textbook(questions), measured)))
        print(_write(f"{name}, left out", summarize_errors(predicted, measured)))
        if has_rows:
            _print_rows(questions, predicted)
    rows = [row for row in MEMORY.evaluate(read_runs("bloom")) if row.run.oom is not None]
    print(judge_memory([bool(row.prediction.runs_out) for row in rows], [bool(row.run.oom) for row in rows]))
    for row in rows:
        if row.run.oom or row.prediction.runs_out:
            print(f"{row.run.id} oom {row.run.oom} predicted {(row.prediction.peak_bytes or 0) / GIB:.1f} GiB")


def _summarize(predicted: Sequence[float], measured: Sequence[float], chosen: Sequence[int]) -> Errors:
    return summarize_errors([predicted[i] for i in chosen], [measured[i] for i in chosen])


def _write(name: str, errors: Errors) -> str:
    figures = (errors.median, errors.p90, errors.worst, errors.bias)
    return f"| {name} | {errors.count} | {' | '.join(f'{100 * figure:.1f} %' for figure in figures)} |"


def _print_rows(questions: Sequence[Question], predicted: Sequence[float]) -> None:
    for question, value in zip(questions, predicted, strict=True):
        known = question.measured_bytes
        print(f"    {question.name}: {known / GIB:.2f} GiB, predicted {value / GIB:.2f}, {value / known - 1:+.1%}")


def write_constants() -> None:
    """Writes the constants fitted on all rows into `memory.csv`."""
    peaks = [ask_peak(peak) for peak in (*read_answered(), *read_refused())]
    runs = [ask_run(run) for run in read_runs("simumax", "torchtitan", "bloom") if run.peak_bytes]
    fitted = fit([*peaks, *runs])
    path = Path(str(files("meshwright.planning.cost") / "memory.csv"))
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        key = (row["practice"], row["platform"])
        if row["name"] in FITTED.get(key, ()):
            row["value"] = f"{getattr(fitted[key], row['name']):.4g}"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    sys.exit(main())
