"""An engine with a load reporter: it answers POST /v1/start_reporting and streams its load to where it was told.

usage: engine.py STUBS PACKAGE RANKS

STUBS is the folder with the generated modules, PACKAGE the name under which LoadMonitorService is called. The first line
on stdout is the engine's URL. It runs until stdin ends.
"""

import json
import sys
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

stubs, PACKAGE, RANKS = sys.argv[1], sys.argv[2], int(sys.argv[3])
sys.path.insert(0, stubs)

import grpc
from google.protobuf.empty_pb2 import Empty
from model_gateway.loadmonitor.v1 import load_monitor_pb2 as pb

SOURCE = str(uuid.uuid4())  # new for each process
RECONNECT = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.RESOURCE_EXHAUSTED)


class Sequence:
    """One counter for all targets."""

    def __init__(self):
        self.lock, self.last = threading.Lock(), 0

    def next(self):
        with self.lock:
            self.last += 1
            return self.last


SEQUENCE = Sequence()


def report(worker_addr):
    """The n-th report: a new load at every fourth, and now and then what engines say when something is wrong."""
    n = SEQUENCE.next()
    now = int(time.time() * 1000)
    r = pb.LoadReport(
        source_instance_id=SOURCE,
        sequence_id=n,
        report_time_unix_ms=now,
        worker=pb.Worker(worker_addr=worker_addr, worker_type=pb.WORKER_TYPE_REGULAR),
        status=pb.REPORT_STATUS_HEALTHY,
    )
    if n % 13 == 0:
        r.status = pb.REPORT_STATUS_UNREACHABLE
        r.last_error = "scheduler does not answer"
        return r
    if n % 17 == 0:
        r.status = pb.REPORT_STATUS_STALE
    load = n // 4
    for rank in range(RANKS):
        r.ranks.add(
            dp_rank=rank,
            snapshot_time_unix_ms=now - 3,
            num_running_reqs=(load + rank) % 7,
            num_waiting_reqs=load % 3,
            num_waiting_uncached_tokens=100 * (load % 5),
            num_used_tokens=100 + load % 900,
            num_total_tokens=200 + load % 900,
            max_total_num_tokens=2**53 + 1,
            max_running_requests=64,
            token_usage=0.125 * (load % 8),
            gen_throughput=50.5,
            cache_hit_rate=0.25,
            utilization=-1,
        )
    return r


class Target:
    """One monitor that asked for reports, while its lease lives."""

    def __init__(self, address, worker_addr, interval_ms, lease_ms):
        self.address, self.worker_addr = address, worker_addr
        self.renew(interval_ms, lease_ms)
        threading.Thread(target=self.run, daemon=True).start()

    def renew(self, interval_ms, lease_ms):
        self.interval, self.until = interval_ms / 1000, time.monotonic() + lease_ms / 1000

    def reports(self):
        while time.monotonic() < self.until:
            yield report(self.worker_addr)
            time.sleep(self.interval)

    def run(self):
        while time.monotonic() < self.until:
            with grpc.insecure_channel(self.address) as channel:
                call = channel.stream_unary(
                    f"/{PACKAGE}.LoadMonitorService/Report",
                    request_serializer=pb.LoadReport.SerializeToString,
                    response_deserializer=Empty.FromString,
                )
                try:
                    call(self.reports())
                except grpc.RpcError as e:
                    print(f"stream ended: {e.code()}: {e.details()}", file=sys.stderr, flush=True)
                    if e.code() not in RECONNECT:
                        break
            time.sleep(0.25)
        with LOCK:
            TARGETS.pop(self.address, None)


LOCK, TARGETS = threading.Lock(), {}


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path != "/server_info":
            return self.answer(404, {"error": "not found"})
        self.answer(200, {"dp_size": RANKS, "model_path": "m1", "served_model_name": "m1", "disaggregation_mode": "null"})

    def do_POST(self):
        if self.path != "/v1/start_reporting":
            return self.answer(404, {"error": "not found"})
        want = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if set(want) != {"ip", "port", "report_interval_ms", "lease_ttl_ms"}:
            return self.answer(422, {"error": f"fields {sorted(want)}"})
        ip = f"[{want['ip']}]" if ":" in want["ip"] else want["ip"]
        address = f"{ip}:{want['port']}"
        interval, lease = want["report_interval_ms"], want["lease_ttl_ms"]
        with LOCK:
            if address in TARGETS:
                TARGETS[address].renew(interval, lease)
            else:
                TARGETS[address] = Target(address, "http://" + self.headers["Host"], interval, lease)
        self.answer(200, {"status": "reporting", "lease_ttl_ms": lease, "renew_after_ms": lease // 3})

    def answer(self, code, value):
        body = json.dumps(value).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
server.daemon_threads = True
threading.Thread(target=server.serve_forever, daemon=True).start()
print(f"http://127.0.0.1:{server.server_port}", flush=True)
sys.stdin.read()
