import prometheus_client


class SpecDecodingProm:
    _counter_cls = prometheus_client.Counter

    def __init__(self, labelnames, diffusion):
        if diffusion:
            specs = [("vllm:steps_of_diffusion", "x")]
        else:
            specs = [("vllm:drafts", "x"), ("vllm:accepted", "x")]
        self.counters = [self._counter_cls(name=name, documentation=doc, labelnames=labelnames) for name, doc in specs]
