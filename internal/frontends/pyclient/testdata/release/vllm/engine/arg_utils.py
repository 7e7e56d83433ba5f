from types import SimpleNamespace


class AsyncEngineArgs:
    def __init__(self, **arguments):
        self.arguments = arguments

    def create_engine_config(self):
        return SimpleNamespace(
            port=self.arguments["data_parallel_rpc_port"],
            model_config=SimpleNamespace(max_model_len=self.arguments["max_model_len"]),
            cache_config=SimpleNamespace(num_gpu_blocks=None, block_size=None),
        )
