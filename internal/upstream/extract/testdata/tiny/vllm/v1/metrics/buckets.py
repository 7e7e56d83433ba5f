LATENCY: tuple[float, ...] = (
    0.5,
    10.0,  # seconds
)
_DEFAULTS = {"request_latency": LATENCY}


def histogram_buckets(family, max_model_len=None, overrides=None):
    if family == "tokens":
        return build_buckets(max_model_len)
    return list(_DEFAULTS[family])


AGAIN = {"again": histogram_buckets("again")}
