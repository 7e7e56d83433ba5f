from msgspec import msgpack

CUSTOM_TYPE_RAW_VIEW = 3


class UtilityResult:
    def __init__(self, r=None):
        self.result = r


def encode(data):
    return msgpack.Ext(CUSTOM_TYPE_RAW_VIEW, data)
