package wirediff_test

import (
	"encoding/json"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/upstream/wirediff"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// sources are four releases of three lines, out of their order: a field, a key, a method and an enum come, a struct
// goes, and of the last one not all could be read.
func sources(t *testing.T) []wirediff.Source {
	t.Helper()
	first := parse(t, `{
		"line": "1.0", "version": "1.0.0", "commit": "aaaaaaaaa",
		"messages": {"READY": {"encoding": "map", "module": "m.py", "keys": [{"name": "status"}]}},
		"enums": {"FinishReason": {"module": "m.py", "members": [{"name": "STOP", "value": 0, "at": 3}]}},
		"constants": {"VERSION": {"module": "m.py", "at": 9, "value": 1}},
		"utilities": {"sleep": {"signature": "(self, level: int) -> None", "result": "none", "module": "c.py", "at": 4, "calls": ["(level)"]}},
		"structs": {
			"EngineCoreOutput": {"encoding": "array", "module": "m.py", "at": 10, "fields": [
				{"name": "request_id", "type": "str", "required": true, "at": 11}, {"name": "stats", "type": "Gone | None", "at": 12}]},
			"EngineCoreReadyResponse": {"encoding": "map", "module": "m.py", "fields": [{"name": "n", "type": "int", "required": true}]},
			"Gone": {"encoding": "map", "module": "m.py", "fields": []},
			"Same": {"encoding": "map", "module": "m.py", "fields": [{"name": "x", "type": "int", "required": true}]}
		}}`)
	patch := change(t, first, "1.0", "1.0.1", func(*protocol.Profile) {})
	second := change(t, first, "1.1", "1.1.0", func(p *protocol.Profile) {
		s := p.Structs["EngineCoreOutput"]
		s.Fields = []protocol.Field{s.Fields[0], {Name: "kind", Type: "str | None", At: 12}, {Name: "stats", Type: "str | None", At: 13}}
		p.Structs["EngineCoreOutput"] = s
		delete(p.Structs, "Gone")
		ready := p.Structs["EngineCoreReadyResponse"]
		ready.Fields = append(ready.Fields, protocol.Field{Name: "world_size", Type: "int", Required: true, At: 20})
		p.Structs["EngineCoreReadyResponse"] = ready
		m := p.Messages["READY"]
		m.Keys = append(m.Keys, protocol.Key{Name: "lookahead", Optional: true, At: 30})
		p.Messages["READY"] = m
	})
	third := change(t, second, "1.2", "1.2.0", func(p *protocol.Profile) {
		p.Utilities["sleep"] = protocol.Utility{Signature: "(self, level: int) -> bool", Result: "bool", Calls: []string{"(level)"}}
		p.Utilities["wake_up"] = protocol.Utility{Signature: "(self) -> None", Result: "none"}
		e := p.Enums["FinishReason"]
		e.Members = append(e.Members, protocol.Member{Name: "LENGTH", Value: json.RawMessage("1"), At: 4})
		p.Enums["FinishReason"] = e
		c := p.Constants["VERSION"]
		c.Value = json.RawMessage("2")
		p.Constants["VERSION"] = c
	})
	gap := wirediff.Gap{Release: "1.2.0", Place: protocol.Place{Module: "m.py", At: 7}, What: "struct New", Why: "it is made by code"}
	return []wirediff.Source{{Profile: second}, {Profile: third, Gaps: []wirediff.Gap{gap}}, {Profile: patch}, {Profile: first}}
}

func parse(t *testing.T, text string) *protocol.Profile {
	t.Helper()
	p := new(protocol.Profile)
	require.NoError(t, json.Unmarshal([]byte(text), p))
	return p
}

// change is a copy that was changed.
func change(t *testing.T, of *protocol.Profile, line, version string, how func(*protocol.Profile)) *protocol.Profile {
	t.Helper()
	text, err := json.Marshal(of)
	require.NoError(t, err)
	p := parse(t, string(text))
	p.Line, p.Version = line, version
	how(p)
	return p
}

func historyFixture(t *testing.T) *wirediff.History {
	t.Helper()
	h, err := wirediff.NewHistory(sources(t))
	require.NoError(t, err)
	return h
}

// ofBuild are the lines that this build has a profile of.
func ofBuild(t *testing.T) *wirediff.History {
	t.Helper()
	var all []wirediff.Source
	for _, line := range protocol.Lines() {
		p, err := protocol.LoadProfile(line)
		require.NoError(t, err)
		all = append(all, wirediff.Source{Profile: p})
	}
	h, err := wirediff.NewHistory(all)
	require.NoError(t, err)
	return h
}
