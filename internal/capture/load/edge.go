package load

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
)

// playEdge sends groups one after another, the requests of a group at a time.
func playEdge(ctx context.Context, l *load) error {
	first := 0
	for _, group := range edgeGroups(generator(l.cfg.Seed, 0)) {
		err := parallel(ctx, len(group), len(group), func(ctx context.Context, i int) error {
			_, err := l.do(ctx, group[i].numbered(first+i))
			return err
		})
		if err != nil {
			return err
		}
		first += len(group)
	}
	return nil
}

// edgeGroups are the requests of the workload. Those that an old or a strict server may not know are marked so; all
// others every server answers.
func edgeGroups(rng *rand.Rand) [][]request {
	var groups [][]request
	for _, single := range [][]request{
		chats(rng), lengths(rng), samplings(rng), logprobs(rng), stops(rng), prompts(rng), several(rng), constrained(rng),
		routed(rng),
	} {
		for _, r := range single {
			groups = append(groups, []request{r})
		}
	}
	groups = append(groups, aborts(rng)...)
	for _, r := range calls() {
		groups = append(groups, []request{r})
	}
	return append(groups, repeats(rng)...)
}

func chats(rng *rand.Rand) []request {
	return []request{
		chat("chat", text(rng, 20), object{"max_tokens": 16, "temperature": 0}),
		chat("chat, whole", text(rng, 20), object{"max_tokens": 16, "temperature": 0}).whole(1),
		chat("chat, logprobs", text(rng, 20), object{"max_tokens": 8, "temperature": 0, "logprobs": true, "top_logprobs": 3}),
		chat("chat, no limit", text(rng, 20), object{"temperature": 1, "seed": 1, "stop": []string{"e", "a", "t"}}),
	}
}

func lengths(rng *rand.Rand) []request {
	return []request{
		completion("one token", object{"prompt": text(rng, 30), "max_tokens": 1, "temperature": 0}),
		completion("min_tokens", object{"prompt": text(rng, 30), "max_tokens": 30, "min_tokens": 20, "seed": 2}),
		completion("ignore_eos", object{"prompt": text(rng, 30), "max_tokens": 64, "ignore_eos": true, "seed": 3}),
	}
}

func samplings(rng *rand.Rand) []request {
	sampled := func(name string, body object) request {
		body["prompt"], body["max_tokens"], body["seed"] = text(rng, 30), 16, between(rng, 1, 1000)
		return completion(name, body)
	}
	return []request{
		sampled("penalties", object{"presence_penalty": 0.5, "frequency_penalty": 0.5, "repetition_penalty": 1.1}),
		sampled("top_p, top_k, min_p", object{"top_p": 0.9, "top_k": 20, "min_p": 0.01}),
		sampled("logit_bias", object{"logit_bias": object{"5": 10.0, "300": -100}}),
		sampled("allowed_token_ids", object{"allowed_token_ids": []int{300, 301, 302, 303}}).ifKnown(),
		sampled("bad_words", object{"bad_words": []string{" import", " def"}}).ifKnown(),
		sampled("vllm_xargs", object{"vllm_xargs": object{"colour": "blue"}}).ifKnown(),
		sampled("repetition_detection", object{
			"repetition_detection": object{"max_pattern_size": 4, "min_pattern_size": 1, "min_count": 4},
			"temperature":          0,
		}).ifKnown(),
	}
}

func logprobs(rng *rand.Rand) []request {
	greedy := func(name string, body object) request {
		body["prompt"], body["max_tokens"], body["temperature"] = text(rng, 30), 5, 0
		return completion(name, body)
	}
	return []request{
		greedy("logprobs", object{"logprobs": 2}),
		greedy("logprobs of the chosen alone", object{"logprobs": 0}),
		greedy("prompt_logprobs", object{"prompt_logprobs": 1}).whole(1).ifKnown(),
		greedy("echo", object{"echo": true}).whole(1).ifKnown(),
		greedy("echo, logprobs", object{"echo": true, "logprobs": 1}).whole(1).ifKnown(),
	}
}

func stops(rng *rand.Rand) []request {
	ids := []int{300, 301, 302, 303, 304, 305}
	return []request{
		// The frontend matches strings itself, and then aborts the request at the engine.
		completion("stop strings", object{"prompt": text(rng, 30), "max_tokens": 200, "stop": []string{"re", "de", "s"}, "seed": 4}),
		completion("stop_token_ids", object{"prompt": text(rng, 30), "max_tokens": 200, "stop_token_ids": ids, "temperature": 1.5, "seed": 5}),
		completion("include_stop_str_in_output", object{
			"prompt": text(rng, 30), "max_tokens": 200, "stop": []string{"e"}, "include_stop_str_in_output": true, "seed": 6,
		}).ifKnown(),
	}
}

func prompts(rng *rand.Rand) []request {
	return []request{
		completion("1500 tokens", object{"prompt": tokens(rng, 1500), "max_tokens": 8, "temperature": 0}),
		completion("3000 tokens", object{"prompt": tokens(rng, 3000), "max_tokens": 8, "temperature": 0}),
		completion("1 token", object{"prompt": []int{1}, "max_tokens": 2, "temperature": 0}),
		completion("truncate_prompt_tokens", object{
			"prompt": text(rng, 60), "max_tokens": 4, "temperature": 0, "truncate_prompt_tokens": 20,
		}).ifKnown(),
		{
			name: "tokens in, tokens out", method: http.MethodPost, path: "/inference/v1/generate", optional: true,
			body: object{"token_ids": tokens(rng, 40), "sampling_params": object{"max_tokens": 8, "temperature": 0}},
		},
	}
}

func several(rng *rand.Rand) []request {
	batch := [][]int{tokens(rng, 4), tokens(rng, 40), tokens(rng, 7)}
	return []request{
		completion("n", object{"prompt": text(rng, 30), "max_tokens": 16, "n": 3, "seed": 7}).whole(3).ifKnown(),
		chat("chat, n", text(rng, 20), object{"max_tokens": 8, "n": 2, "seed": 8}).whole(2).ifKnown(),
		completion("batch of token prompts", object{"prompt": batch, "max_tokens": 8, "temperature": 0}).whole(3).ifKnown(),
		completion("batch of texts", object{
			"prompt": []string{text(rng, 5), text(rng, 50)}, "max_tokens": 8, "temperature": 0,
		}).whole(2).ifKnown(),
	}
}

func constrained(rng *rand.Rand) []request {
	under := func(name string, body object) request {
		body["max_tokens"], body["seed"] = 30, between(rng, 1, 1000)
		return chat(name, text(rng, 20), body).ifKnown()
	}
	point := object{
		"type": "object", "required": []string{"x", "y"}, "additionalProperties": false,
		"properties": object{"x": object{"type": "integer"}, "y": object{"type": "boolean"}},
	}
	return []request{
		under("json_object", object{"response_format": object{"type": "json_object"}}),
		under("json_schema", object{
			"response_format": object{"type": "json_schema", "json_schema": object{"name": "point", "schema": point}},
		}),
		under("regex", object{"structured_outputs": object{"regex": "[0-9]{3}-[a-z]{4}"}}),
		under("choice", object{"structured_outputs": object{"choice": []string{"prefill", "decode"}}}),
		under("grammar", object{"structured_outputs": object{"grammar": `root ::= "a" root | "b"`}}),
	}
}

func routed(rng *rand.Rand) []request {
	return []request{
		completion("priority", object{"prompt": text(rng, 30), "max_tokens": 16, "temperature": 0, "priority": 3}).ifKnown(),
		completion("cache_salt", object{"prompt": text(rng, 30), "max_tokens": 4, "temperature": 0, "cache_salt": "pepper"}).ifKnown(),
	}
}

// aborts are clients that hang up: one alone, then five among five that stay.
func aborts(rng *rand.Rand) [][]request {
	endless := func(name string, events int) request {
		return completion(name, object{
			"prompt": text(rng, 30), "max_tokens": 500, "ignore_eos": true, "seed": between(rng, 1, 1000),
		}).hangingUp(events)
	}
	var mixed []request
	for i := range 5 {
		stays := object{"prompt": text(rng, 30), "max_tokens": 30, "temperature": 0}
		mixed = append(mixed, endless(fmt.Sprintf("abort among others, %d", i), 3+i),
			completion(fmt.Sprintf("beside aborts, %d", i), stays))
	}
	return [][]request{{endless("abort alone", 7)}, mixed}
}

// calls act on the engine itself. Most need a server in development mode.
func calls() []request {
	return []request{
		call(http.MethodPost, "/reset_prefix_cache"),
		call(http.MethodPost, "/reset_mm_cache"),
		call(http.MethodPost, "/reset_encoder_cache"),
		call(http.MethodGet, "/is_sleeping"),
		call(http.MethodGet, "/is_paused"),
		call(http.MethodPost, "/pause"),
		call(http.MethodGet, "/is_paused"),
		call(http.MethodPost, "/resume"),
		call(http.MethodGet, "/weight_info"),
	}
}

// repeats are what a prefix cache lives on: one prompt, three times in turn and then four times at once.
func repeats(rng *rand.Rand) [][]request {
	prompt := text(rng, 200)
	again := func(i int) request {
		return completion(fmt.Sprintf("repeat %d", i), object{"prompt": prompt, "max_tokens": 10, "seed": i})
	}
	groups := [][]request{{again(1)}, {again(2)}, {again(3)}}
	return append(groups, []request{again(4), again(5), again(6), again(7)})
}
