"""Loads the parts of an SGLang release that publish and advertise a scheduler's load, straight from its wheel.

These modules of the release run as they are: the load publisher, the port rule and configuration behind it
(disaggregation.kv_events), the description for /server_info (runtime_context), LoadSnapshot and the network addresses.
They need no GPU and no model, but packages around them import the whole engine, so these are stood in for:

- sglang, sglang.srt.utils, sglang.srt.distributed: packages whose own __init__ does not run;
- sglang.srt.arg_groups.overrides: two functions that read resolved settings, here those of the test;
- get_parallel of runtime_context: the place of a scheduler among the others, which a launcher states.
"""

import importlib
import inspect
import sys
import types


def shell(wheel, name):
    """A package that has the release's modules, but not what its __init__ makes."""
    package = types.ModuleType(name)
    package.__path__ = [f"{wheel}/{name.replace('.', '/')}"]
    sys.modules[name] = package


class Release:
    def __init__(self, packages, wheel):
        sys.path.insert(0, packages)
        for name in ("sglang", "sglang.srt.utils", "sglang.srt.distributed"):
            shell(wheel, name)
        overrides = types.ModuleType("sglang.srt.arg_groups.overrides")
        overrides.resolving_view = lambda settings: settings
        overrides.kv_event_block_size_of = lambda settings: settings.page_size
        sys.modules[overrides.__name__] = overrides

        self.version = self.load("sglang.version").__version__
        self.context = self.load("sglang.srt.runtime_context")
        self.context.get_parallel = lambda: self.place
        self.place = None
        self.ports = self.load("sglang.srt.disaggregation.kv_events")
        self.publishing = self.load("sglang.srt.managers.scheduler_components.load_publisher")
        self.LoadSnapshot = self.load("sglang.srt.managers.load_snapshot").LoadSnapshot
        # Older releases hand a scheduler's place among the others to the publisher, newer ones hold it in the context.
        self.given_place = "ps" in inspect.signature(self.publishing.SchedulerLoadPublisher.__init__).parameters
        # And of N ranks with attention parallelism, newer ones say that there is one replica.
        self.replicas = (lambda ranks: ranks) if self.given_place else (lambda ranks: 1)

    def load(self, name):
        return importlib.import_module(name)

    def settings(self, ranks, kv_events, load_endpoint):
        """The settings that the description for /server_info reads."""
        return types.SimpleNamespace(
            kv_events_config=kv_events,
            load_publish_endpoint=load_endpoint,
            page_size=64,
            dp_size=self.replicas(ranks),
            attn_dp_size=ranks // self.replicas(ranks),
        )

    def describe(self, settings):
        return self.context.describe_kv_events_publisher(settings)

    def publisher(self, settings, rank, ranks):
        """The publisher that the scheduler of a rank makes."""
        options = dict(kv_events_config=settings.kv_events_config, load_publish_endpoint=settings.load_publish_endpoint)
        if self.given_place:
            place = self.load("sglang.srt.distributed.parallel_state_wrapper").ParallelState.trivial(dp_rank=rank, dp_size=ranks)
            return self.publishing.SchedulerLoadPublisher(ps=place, **options)
        self.place = types.SimpleNamespace(
            pp_rank=0, attn_tp_rank=0, attn_cp_rank=0, dp_rank=None, attn_dp_rank=rank, attn_dp_size=ranks, num_dp_ranks=ranks
        )
        return self.publishing.SchedulerLoadPublisher(**options)
