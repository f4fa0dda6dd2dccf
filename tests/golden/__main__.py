"""`python -m tests.golden [--write] [NAME…]`: prints how replies differ from the recorded ones, or records them anew.

A NAME is a group, `plan`, or a request, `plan/h100-dp-tp`; without one all are asked.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from tests.golden.hosts import Hosts
from tests.golden.replies import FOLDER, Golden, diff, read_requests


def main() -> int:
    """Returns 1 where something differs and is not written."""
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description=__doc__)
    parser.add_argument("--write", action="store_true", help="record the replies of now")
    parser.add_argument("names", nargs="*", metavar="NAME")
    options = parser.parse_args()
    requests = read_requests()
    chosen = [each for each in requests if not options.names or {each.group, str(each)} & set(options.names)]
    if not chosen:
        parser.error(f"nothing has these names; groups: {', '.join(sorted({each.group for each in requests}))}")
    changed = compare(chosen, write=options.write)
    changed += remove_others(requests, write=options.write)
    print(f"{changed} of {len(chosen)} differ{' and are written' * options.write}", file=sys.stderr)
    return int(bool(changed) and not options.write)


def compare(chosen: Sequence[Golden], *, write: bool) -> int:
    """Asks, prints what differs, writes it if told to; returns how many differ."""
    changed = 0
    hosts = Hosts(each.host for each in chosen)
    try:
        for each in chosen:
            text = hosts.answer(each)
            if difference := diff(each, text):
                changed += 1
                print(difference)
                if write:
                    each.path.parent.mkdir(parents=True, exist_ok=True)
                    each.path.write_text(text, encoding="utf-8")
    finally:
        hosts.close()
    return changed


def remove_others(requests: Sequence[Golden], *, write: bool) -> int:
    """Names the files that belong to no request, and removes them if told to; returns their number."""
    others = set((FOLDER / "replies").rglob("*.json")) - {each.path for each in requests}
    for path in sorted(others):
        print(f"{path.relative_to(FOLDER)} belongs to no request")
        if write:
            path.unlink()
    return len(others)


if __name__ == "__main__":
    sys.exit(main())
