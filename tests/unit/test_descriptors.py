"""The limit of descriptors is raised to what is allowed, and never lowered. In a process of its own: it is for life."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

RAISE = """
import json, resource, sys
from meshwright_agent.descriptors import raise_descriptor_limit, read_descriptor_limit
soft, hard, enough = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
expected, before = read_descriptor_limit(enough), resource.getrlimit(resource.RLIMIT_NOFILE)
told = raise_descriptor_limit(enough)
print(json.dumps([expected, *before, told, *resource.getrlimit(resource.RLIMIT_NOFILE)]))
"""


@pytest.mark.parametrize(
    ("soft", "hard", "enough", "becomes"),
    [(256, 1024, 4096, 1024), (256, 1024, 512, 512), (1024, 1024, 512, 1024), (512, 1024, 512, 512)],
)
def test_it_becomes_enough_or_what_is_allowed_and_is_foretold_without_a_change(
    soft: int, hard: int, enough: int, becomes: int
) -> None:
    command = [sys.executable, "-c", RAISE, str(soft), str(hard), str(enough)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [becomes, soft, hard, becomes, becomes, hard]
