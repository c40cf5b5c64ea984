"""Feeds the golden traces to receiver.py and compares what it then holds. testdata/watch/README.md says how they are made.

usage: traces.py STUBS FOLDER
"""

import base64
import json
import pathlib
import sys

stubs, folder = sys.argv[1], pathlib.Path(sys.argv[2])
sys.path.insert(0, stubs)

from google.protobuf.json_format import ParseDict
from loadmonitor.v1 import snapshot_pb2 as pb

from receiver import ContractError, View


def replay(trace):
    """Yields what is wrong."""
    view = View()
    for stream in trace["streams"]:
        request = pb.WatchRequest.FromString(base64.b64decode(stream["request_bytes"]))
        if request != ParseDict(stream["request"], pb.WatchRequest()):
            yield f"request_bytes are not {stream['request']}"
        if request.HasField("resume") and request.resume != view.resume():
            yield f"resumes from {request.resume}, held is {view.resume()}"
        view.opened()
        for update in stream["updates"]:
            refused = False
            for text in update["frames"]:
                try:
                    view.apply(pb.WatchResponse.FromString(base64.b64decode(text)))
                except ContractError as e:
                    refused = True
                    if not update.get("restart"):
                        yield f"{update['about']}: {e}"
            if update.get("restart") and not refused:
                yield f"{update['about']}: was not refused"
            want = update["view"]
            if (view.epoch, view.version, view.view) != (want["epoch"], want["version"], want["view"]):
                yield f"{update['about']}: holds {view.epoch} {view.version} {view.view}"
            if view.summary != ParseDict(want["summary"], pb.Summary()):
                yield f"{update['about']}: summary {view.summary}, want {want['summary']}"
            if view.sorted() != [ParseDict(w, pb.Worker()) for w in want["workers"]]:
                yield f"{update['about']}: holds\n{view.sorted()}\nwant\n{want['workers']}"


wrong, files = 0, sorted(folder.glob("*.json"))
for file in files:
    for text in replay(json.loads(file.read_text())):
        print(f"{file.name}: {text}", file=sys.stderr)
        wrong += 1
print(len(files), flush=True)
sys.exit(1 if wrong or not files else 0)
