from prometheus_client import Counter, Gauge, Histogram

from vllm.v1.metrics.buckets import histogram_buckets


class StatLogger:
    _gauge_cls = Gauge
    _counter_cls = Counter
    _histogram_cls = Histogram

    def __init__(self, config):
        labelnames = ["model_name", "engine"]
        latency_buckets = [0.3, 1.0, 2]
        request_buckets = histogram_buckets("request_latency", overrides=config.buckets)
        self.running = per_engine(
            self._gauge_cls(name="vllm:running", documentation="x", labelnames=labelnames)
        )
        self.success = self._counter_cls(  # the suffix is added
            name="vllm:success", documentation="x", labelnames=labelnames + ["reason"]
        )
        self.steps = self._counter_cls("vllm:steps_total", "x", labelnames)
        self.latency = self._histogram_cls(
            name="vllm:latency", documentation="x", buckets=latency_buckets, labelnames=labelnames
        )
        self.requests = self._histogram_cls(
            name="vllm:requests", documentation="x", buckets=request_buckets, labelnames=labelnames
        )
        self.tokens = self._histogram_cls(
            name="vllm:tokens", documentation="x", buckets=histogram_buckets("tokens", config.most), labelnames=labelnames
        )
        self.other = self._histogram_cls(name="vllm:other", documentation="x", buckets=config.other())
        self.again = self._histogram_cls(name="vllm:again", documentation="x", buckets=histogram_buckets("again"))
        self.preset = Histogram("vllm:preset", "x")
        self.labelname_max = "max"
        self.lora = self._gauge_cls(name="vllm:lora", documentation="x", labelnames=[self.labelname_max, "running"])
        many = many + labelnames  # from itself
        self.itself = self._gauge_cls(name="vllm:itself", documentation="x", labelnames=many)

    def log(self, info):
        name, documentation = None, None
        if info.type == "cache":
            name = "vllm:cache_info"
        gauge = self._gauge_cls(name=name, documentation=documentation, labelnames=info.keys())
