"""Asks a release of SGLang where it publishes its load.

usage: sglang_ports.py PACKAGES WHEEL CASES

CASES is a file with a JSON list of objects with load, kv, replay and ranks. The line that it prints is a list with an
answer to each: [host, base], or null where the release publishes none.
"""

import json
import sys

from sglang_release import Release

ports = Release(*sys.argv[1:3]).ports


def answer(case):
    found, _ = ports.resolve_load_pub_range(
        kv_endpoint=case["kv"], replay_endpoint=case["replay"] or None, dp_size=case["ranks"], load_publish_endpoint=case["load"]
    )
    return found


with open(sys.argv[3]) as cases:
    print(json.dumps([answer(case) for case in json.load(cases)]), flush=True)
