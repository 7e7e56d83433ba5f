package dataset

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
)

// Is tells a dataset from a recording of an engine, by the name of the file and, for JSON, by the keys of its first
// object. A compressed file is no dataset, and neither is one without a row.
func Is(path string) (bool, error) {
	switch ext := extension(path); {
	case readers[ext] == nil:
		return false, nil
	case ext != ".jsonl" && ext != ".ndjson" && ext != ".json":
		return true, nil
	}
	file, r, err := open(path)
	if errors.Is(err, errGzip) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("open dataset: %w", err)
	}
	defer file.Close()
	keys, array := firstKeys(json.NewDecoder(r))
	return array || len(keys) > 0 && !recorded(keys), nil
}

// recorded tells whether an object is the first of a recording, or the report of a load generator.
func recorded(keys []string) bool {
	has := func(key string) bool { return slices.Contains(keys, key) }
	return has("meta") || has("benchmarks") || has("ttft_ms") && has("prompt_tokens") && has("output_tokens")
}

// firstKeys returns the keys of the first object, or of the first one in an array, as far as they can be read.
func firstKeys(dec *json.Decoder) (keys []string, array bool) {
	first, err := dec.Token()
	if err == nil && first == json.Delim('[') {
		keys, _ = firstKeys(dec)
		return keys, !recorded(keys)
	}
	if err != nil || first != json.Delim('{') {
		return nil, false
	}
	for dec.More() {
		key, err := dec.Token()
		name, ok := key.(string)
		if err != nil || !ok {
			return keys, false
		}
		keys = append(keys, name)
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil && !errors.Is(err, io.EOF) {
			return keys, false
		}
	}
	return keys, false
}
