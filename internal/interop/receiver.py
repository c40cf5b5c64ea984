"""A receiver of the Watch contract. The numbers in brackets are those of the contract in docs/protocol.md."""

from loadmonitor.v1 import snapshot_pb2 as pb


class ContractError(Exception):
    """The monitor broke the contract: a router would open a new stream without resume [2]."""


class View:
    """What a router holds: workers by handle, as of one version."""

    def __init__(self):
        self.epoch, self.version, self.view = "", 0, ""
        self.workers = {}
        self.summary = None
        self.pending = []  # frames of the update that is not complete yet
        self.fulls = self.deltas = self.heartbeats = self.marks = self.removals = 0

    def resume(self):
        """[7]"""
        if not self.epoch:
            return None
        return pb.Resume(epoch=self.epoch, version=self.version, view=self.view)

    def opened(self):
        """A new stream begins: what the last one left unfinished is void."""
        self.pending = []

    def apply(self, frame):
        """Takes one frame and returns whether it completed an update that changed the view."""
        if self.pending:
            first = self.pending[0]
            same = ("epoch", "base_version", "version")
            if any(getattr(frame, f) != getattr(first, f) for f in same):
                raise ContractError(f"another update begins before the last one is complete: {frame}")
        if len(frame.refreshed) != len(frame.refreshed_us):
            raise ContractError("marks without times")
        self.pending.append(frame)
        if not frame.last:
            return False
        frames, self.pending = self.pending, []

        content = any(f.changed or f.removed or f.refreshed for f in frames)
        if frame.base_version == frame.version:  # heartbeat [5]
            if content or (frame.epoch, frame.version) != (self.epoch, self.version):
                raise ContractError(f"heartbeat of {frame.epoch} {frame.version}, held is {self.epoch} {self.version}")
            self.heartbeats += 1
            return False
        if not frame.HasField("summary"):
            raise ContractError("update without a summary")  # [6]
        if frame.base_version == 0:  # replace everything [2]
            self.workers = {}
            self.fulls += 1
        else:
            if frame.epoch != self.epoch or frame.base_version > self.version or frame.version < self.version:
                raise ContractError(f"update {frame.base_version} to {frame.version}, held is {self.version}")
            self.deltas += 1
        for f in frames:  # [3]
            for w in f.changed:
                worker = self.workers[w.handle] = pb.Worker()
                worker.CopyFrom(w)
        for f in frames:
            for handle in f.removed:
                self.removals += self.workers.pop(handle, None) is not None
        for f in frames:
            for handle, at in zip(f.refreshed, f.refreshed_us):
                self.mark(handle, at)
        self.epoch, self.version, self.view = frame.epoch, frame.version, frame.view
        self.summary = frame.summary
        return True

    def mark(self, handle, at):
        """[4]"""
        worker = self.workers.get(handle)
        if worker is None:
            return
        self.marks += 1
        worker.oldest_received_us = max(worker.oldest_received_us, at)
        for rank in worker.ranks:
            if rank.freshness == pb.FRESHNESS_FRESH:
                rank.received_us = max(rank.received_us, at)

    def sorted(self):
        return sorted(self.workers.values(), key=lambda w: w.id)
