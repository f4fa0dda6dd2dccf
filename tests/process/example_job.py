"""One process of a job that runs an example of the documents, as `python EXAMPLE ADDRESS COUNT RANK` does.

Run as `python example_job.py RANK COUNT PORT STEPS`; the steps are one, {"path": the example}. Answers what it printed.
"""

from __future__ import annotations

import contextlib
import io
import json
import runpy
import sys
from pathlib import Path

from one_rank import answer_and_leave, take_stdout

if __name__ == "__main__":
    out, printed = take_stdout(), io.StringIO()
    rank, count, port, steps = sys.argv[1:]
    (step,) = json.loads(Path(steps).read_text())
    sys.argv = [step["path"], f"127.0.0.1:{port}", count, rank]
    with contextlib.redirect_stdout(printed):
        runpy.run_path(step["path"], run_name="__main__")
    answer_and_leave({"printed": printed.getvalue()}, out)
