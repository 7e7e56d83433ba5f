from dataclasses import dataclass


@dataclass
class SamplingParams:
    temperature: float
    max_tokens: int
    stop_token_ids: list
    logprobs: int
    prompt_logprobs: int
