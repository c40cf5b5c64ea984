"""An engine whose load is published by a release of SGLang (sglang_release.py); its numbers are those of the test.

usage: sglang_engine.py PACKAGES WHEEL RANKS HTTP_PORT KV_PORT [TAKEN]

The ports are 0 for any that are free. The load port of rank TAKEN is in use by something else. The first line on stdout is
a JSON object with the ports, the release's version and whether each rank has its socket. It runs until stdin ends.

GET  /server_info is what monitors ask for.
POST /loads takes a list with an object for each rank: the fields of LoadSnapshot, or null for a scheduler that hangs.
"""

import json
import random
import socket
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from sglang_release import Release

PACKAGES, WHEEL = sys.argv[1:3]
RANKS, HTTP_PORT, KV_PORT = map(int, sys.argv[3:6])
TAKEN = int(sys.argv[6]) if len(sys.argv) > 6 else None
STEP_S = 0.005

release = Release(PACKAGES, WHEEL)


def publishers(kv_port):
    """All the ranks' publishers, and the settings they have; with replay ports, so that the range moves past those."""
    config = {"publisher": "zmq", "endpoint": f"tcp://*:{kv_port}", "replay_endpoint": f"tcp://*:{kv_port + 1}", "topic": "kv"}
    settings = release.settings(RANKS, json.dumps(config), "auto")
    taken = None
    if TAKEN is not None:
        taken = socket.socket()
        taken.bind(("0.0.0.0", release.describe(settings)["load_endpoint_port_base"] + TAKEN))
    return settings, [release.publisher(settings, rank, RANKS) for rank in range(RANKS)], taken


def candidate(port):
    """A given port, or one below those that systems hand out: no client's socket takes it between two lives of the engine."""
    return port or random.randrange(12000, 30000)


def open_publishers():
    for _ in range(50):
        port = candidate(KV_PORT)
        settings, made, taken = publishers(port)
        if all(p.enable for rank, p in enumerate(made) if rank != TAKEN):
            return port, settings, made, taken
        for p in made:
            p.close()
        if taken:
            taken.close()
    raise SystemExit("no free ports for the load")


kv_port, settings, ranks, taken = open_publishers()
loads = [{} for _ in range(RANKS)]
ending = threading.Event()


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path != "/server_info":
            return self.answer(404, {"error": "not found"})
        self.answer(200, {
            "dp_size": settings.dp_size,
            "attn_dp_size": settings.attn_dp_size,
            "model_path": "m1",
            "served_model_name": "m1",
            "disaggregation_mode": "null",
            "version": release.version,
            "kv_events": release.describe(settings),
        })

    def do_POST(self):
        if self.path != "/loads":
            return self.answer(404, {"error": "not found"})
        global loads
        loads = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.answer(200, {})

    def answer(self, code, value):
        body = json.dumps(value).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


def wait_for_end():
    sys.stdin.read()
    ending.set()


def open_server():
    for _ in range(50):
        try:
            return ThreadingHTTPServer(("127.0.0.1", candidate(HTTP_PORT)), Handler)
        except OSError:
            continue
    raise SystemExit("no free port for HTTP")


server = open_server()
server.daemon_threads = True
threading.Thread(target=server.serve_forever, daemon=True).start()
threading.Thread(target=wait_for_end, daemon=True).start()
print(json.dumps({
    "http_port": server.server_port,
    "kv_port": kv_port,
    "version": release.version,
    "bound": [p.enable for p in ranks],
}), flush=True)

# Each scheduler's loop: even ranks are idle and offer their load at every turn, odd ones decode and send at every fifth.
while not ending.wait(STEP_S):
    for rank, (publisher, load) in enumerate(zip(ranks, loads)):
        if load is not None:
            publisher.publish_load_stat(lambda: release.LoadSnapshot(dp_rank=rank, **load), force=rank % 2 == 0)
