from dataclasses import dataclass


@dataclass
class EngineZmqAddresses:
    inputs: list[str]


@dataclass
class EngineHandshakeMetadata:
    addresses: EngineZmqAddresses
    parallel_config: dict[str, int]


def start(addresses, config, coordinated):
    payload = {}
    if coordinated:
        payload = {k: getattr(config, k) for k in ("master_ip", "master_port")}
    return EngineHandshakeMetadata(addresses=addresses, parallel_config=payload)
