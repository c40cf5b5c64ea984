"""Routers that watch the monitor with receiver.py and compare what they hold with GetSnapshot and with REST.

usage: watch.py STUBS GRPC_ADDRESS HTTP_ADDRESS SECONDS

It watches for so many seconds and then prints a line with what it counted. After that every stream must end because the
monitor shuts down.
"""

import json
import sys
import threading
import time
import traceback
import urllib.request
from collections import OrderedDict
from datetime import datetime

stubs, GRPC, HTTP, SECONDS = sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4])
sys.path.insert(0, stubs)

import grpc
from loadmonitor.v1 import registry_pb2, registry_pb2_grpc
from loadmonitor.v1 import snapshot_pb2 as pb
from loadmonitor.v1 import snapshot_pb2_grpc

from receiver import View

channel = grpc.insecure_channel(GRPC)
snapshots = snapshot_pb2_grpc.SnapshotServiceStub(channel)
registry = registry_pb2_grpc.RegistryServiceStub(channel)

failures = []
ending = threading.Event()  # the monitor is going to shut down


def check(condition, text):
    if not condition:
        raise AssertionError(text)


def get_snapshot(filter):
    """All pages of the newest snapshot."""
    whole = page = snapshots.GetSnapshot(pb.GetSnapshotRequest(filter=filter))
    while page.next_page_token:
        page = snapshots.GetSnapshot(pb.GetSnapshotRequest(filter=filter, page_token=page.next_page_token))
        whole.workers.extend(page.workers)
    return whole


class Watcher(threading.Thread):
    """One router. It compares its view with GetSnapshot after each update, where the version is still the newest."""

    def __init__(self, name, cut_every=0, **options):
        super().__init__(daemon=True)
        self.name, self.cut_every = name, cut_every
        self.request = pb.WatchRequest(**options)
        self.view, self.compared, self.resumed = View(), 0, 0
        self.held = OrderedDict()  # the last versions, for REST
        self.lock = threading.Condition()
        self.start()

    def run(self):
        try:
            while not self.watch():
                pass
        except Exception:
            failures.append(f"{self.name}: {traceback.format_exc()}")
            ending.set()

    def watch(self):
        """Reads one stream to its end, and returns whether it was the last."""
        resume = self.view.resume()
        request = pb.WatchRequest()
        request.CopyFrom(self.request)
        if resume:
            request.resume.CopyFrom(resume)
        deltas = self.view.deltas + self.view.heartbeats
        self.view.opened()
        opened, updates = time.monotonic(), 0
        stream = snapshots.Watch(request)
        try:
            for frame in stream:
                if self.view.apply(frame):
                    self.keep()
                    self.compare()
                updates += frame.last
                if resume and updates == 1 and frame.last and not request.full_only:
                    check(self.view.deltas + self.view.heartbeats > deltas, "resume from a held version got the full picture")
                    self.resumed += 1
                if self.cut_every and time.monotonic() - opened > self.cut_every and not ending.is_set():
                    stream.cancel()
        except grpc.RpcError as e:
            if e.code() == grpc.StatusCode.CANCELLED:
                return False
            check(ending.is_set() and e.code() == grpc.StatusCode.UNAVAILABLE and e.details(), f"stream ended: {e}")
            return True
        raise AssertionError("stream ended with OK")

    def keep(self):
        with self.lock:
            copies = []
            for w in self.view.sorted():
                copies.append(pb.Worker())
                copies[-1].CopyFrom(w)
            self.held[self.view.version] = (copies, self.view.summary)
            if len(self.held) > 500:
                self.held.popitem(last=False)
            self.lock.notify_all()

    def compare(self):
        if ending.is_set():
            return
        want = get_snapshot(self.request.filter)
        if (want.epoch, want.version) != (self.view.epoch, self.view.version):
            return
        check(want.summary == self.view.summary, f"version {want.version}: summary {self.view.summary}, want {want.summary}")
        workers = [self.comparable(w) for w in self.view.sorted()]
        expected = [self.comparable(w) for w in want.workers]
        check(workers == expected, f"version {want.version}:\n{workers}\nGetSnapshot says\n{expected}")
        self.compared += 1

    def comparable(self, worker):
        """A worker without what this watcher did not ask for."""
        w = pb.Worker()
        w.CopyFrom(worker)
        if not self.request.ranks:
            del w.ranks[:]
        if self.request.no_refresh_marks:
            w.oldest_received_us = 0
            for r in w.ranks:
                r.received_us = 0
        return w

    def at(self, version):
        """The view at a version; None if it was skipped."""
        with self.lock:
            self.lock.wait_for(lambda: self.held and max(self.held) >= version, 5)
            return self.held.get(version)


def told(message, field):
    return getattr(message, field) if message.HasField(field) else None


def same(what, got, want):
    check(got == want or not got and not want and type(want) in (str, type(None)), f"REST {what}: {got!r}, the view holds {want!r}")


def word(enum, value, prefix):
    return enum.Name(value)[len(prefix):].lower()


def compare_rest(watcher):
    """Compares the JSON of the newest snapshot with the view at its version; returns whether there was one."""
    with urllib.request.urlopen(f"http://{HTTP}/v1/load_monitor/snapshot") as response:
        body = json.load(response)
    check(body["enabled"] is True, "REST: enabled is not true")
    held = watcher.at(body["version"])
    if held is None:
        return False
    workers, summary = held
    same("epoch", body["epoch"], watcher.view.epoch)
    for field in ("workers", "fresh", "stale", "missing", "incomplete", "unreachable", "complete"):
        same(field, body["summary"][field], getattr(summary, field))
    same("state", body["summary"]["state"], word(pb.FleetState, summary.state, "FLEET_STATE_"))
    same("workers", [w["worker_id"] for w in body["workers"]], [w.id for w in workers])
    shifts = []  # between the two clocks: one and the same for all times, less rounding
    for got, want in zip(body["workers"], workers):
        compare_worker(got, want, shifts)
    check(not shifts or max(shifts) - min(shifts) <= 2, f"REST: received_at and received_us differ by {shifts} ms")
    return True


def compare_worker(got, want, shifts):
    at = want.id + " "
    same(at + "url", got["url"], want.url)
    same(at + "mode", got["mode"], {1: "plain", 2: "prefill", 3: "decode"}[want.role])
    same(at + "model_ids", got["model_ids"], list(want.models))
    same(at + "transport", got["transport"], word(pb.Transport, want.transport, "TRANSPORT_"))
    same(at + "freshness", got["freshness"], word(pb.Freshness, want.freshness, "FRESHNESS_"))
    same(at + "anomalies", got["anomalies"], list(want.anomalies))
    for json_name, name in (("zone", "zone"), ("transport_reason", "transport_reason"), ("reason", "reason"), ("last_error", "last_error"),
                            ("source_instance_id", "source_instance")):
        same(at + json_name, got[json_name], getattr(want, name))
    for name in ("restarts", "freshness_window_ms"):
        same(at + name, got[name], getattr(want, name))
    same(at + "rank_count", got["aggregate"]["rank_count"], want.aggregate.rank_count)
    for field in pb.Aggregate.DESCRIPTOR.fields:
        if field.name != "rank_count":
            same(at + field.name, got["aggregate"][field.name], told(want.aggregate, field.name))
    same(at + "ranks", [r["dp_rank"] for r in got["ranks"]], [r.dp_rank for r in want.ranks])
    for r, rank in zip(got["ranks"], want.ranks):
        here = f"{at}rank {rank.dp_rank} "
        same(here + "freshness", r["freshness"], word(pb.Freshness, rank.freshness, "FRESHNESS_"))
        same(here + "reason", r["reason"], rank.reason)
        for field in pb.Rank.DESCRIPTOR.fields:
            if field.has_presence:
                same(here + field.name, r[field.name], told(rank, field.name))
        if rank.received_us:
            at_ms = datetime.fromisoformat(r["received_at"].replace("Z", "+00:00")).timestamp() * 1000
            shifts.append(at_ms - rank.received_us / 1000)
        else:
            same(here + "received_at", r["received_at"], None)


def register_and_remove(watcher):
    """A worker comes by the API and goes again."""
    spec = registry_pb2.WorkerSpec(id="late", url="http://127.0.0.1:9", role=pb.ROLE_DECODE)
    registry.RegisterWorker(registry_pb2.RegisterWorkerRequest(worker=spec))
    wait(lambda: any(w.id == "late" and w.freshness == pb.FRESHNESS_MISSING for w in watcher.view.sorted()), "late is not in the view")
    registry.DeregisterWorker(registry_pb2.DeregisterWorkerRequest(id="late"))
    wait(lambda: all(w.id != "late" for w in watcher.view.sorted()), "late is still in the view")


def wait(condition, text):
    end = time.monotonic() + 10
    while not condition():
        check(time.monotonic() < end, text)
        time.sleep(0.01)


def main():
    every = Watcher("every", ranks=True)
    watchers = [
        every,
        Watcher("resuming", ranks=True, cut_every=0.7),
        Watcher("without ranks", cut_every=1.1),
        Watcher("full only", ranks=True, full_only=True, min_interval_ms=50),
        Watcher("without marks", ranks=True, no_refresh_marks=True),
        Watcher("decode", ranks=True, filter=pb.Filter(roles=[pb.ROLE_DECODE])),
        Watcher("slow", ranks=True, min_interval_ms=300),
    ]
    seen, fresh, rest = set(), set(), 0
    end = time.monotonic() + SECONDS
    while time.monotonic() < end and not failures:
        register_and_remove(every)
        rest += compare_rest(every)
        with every.lock:
            workers = [w for held in every.held.values() for w in held[0]]
        seen.update(word(pb.Freshness, w.freshness, "FRESHNESS_") for w in workers)
        fresh.update(w.url for w in workers if w.freshness == pb.FRESHNESS_FRESH)
        time.sleep(0.2)
    print(
        json.dumps({
            "rest": rest,
            "seen": sorted(seen),
            "fresh": sorted(fresh),
            "watchers": {
                w.name: {
                    "compared": w.compared, "resumed": w.resumed, "fulls": w.view.fulls, "deltas": w.view.deltas,
                    "heartbeats": w.view.heartbeats, "marks": w.view.marks, "removals": w.view.removals,
                } for w in watchers
            },
        }), flush=True)
    ending.set()
    for w in watchers:
        w.join(20)
        check(not w.is_alive(), f"{w.name}: the stream did not end with the monitor")
    check(not failures, "\n".join(failures))


main()
