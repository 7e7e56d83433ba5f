package player

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// byteEncoder gives each byte of a text the id that the tiny model's tokenizer has
// for it, and decodes them.
type byteEncoder struct {
	ids   [256]uint32
	bytes map[uint32]byte
	lacks string
}

func newByteEncoder(t testing.TB) *byteEncoder {
	t.Helper()
	raw, err := os.ReadFile("../testdata/model/tiny/tokenizer.json")
	must(t, err)
	var file struct {
		Model struct{ Vocab map[string]uint32 }
	}
	must(t, json.Unmarshal(raw, &file))
	e := &byteEncoder{bytes: map[uint32]byte{}}
	next := rune(256) // the bytes that are not printed stand there in their order
	for b := range 256 {
		r := rune(b)
		if b < '!' || b > '~' && b < 0xa1 || b == 0xad {
			r = next
			next++
		}
		id, ok := file.Model.Vocab[string(r)]
		if !ok {
			t.Fatalf("the tokenizer has no token for byte %#x", b)
		}
		e.ids[b], e.bytes[id] = id, byte(b)
	}
	return e
}

// EncodeOutput spells every text but those with a letter that is not to be had.
func (e *byteEncoder) EncodeOutput(text string) (ids []uint32, ok bool) {
	for i := range len(text) {
		ids = append(ids, e.ids[text[i]])
	}
	return ids, e.lacks == "" || !strings.Contains(text, e.lacks)
}

func (e *byteEncoder) decode(ids []uint32) string {
	var b strings.Builder
	for _, id := range ids {
		b.WriteByte(e.bytes[id])
	}
	return b.String()
}

// constrained sets what a request's output must conform to, as a map of one key.
func constrained(key string, value []byte) change {
	raw := append(pack.AppendString(pack.AppendMapHeader(nil, 2), key), value...)
	raw = pack.AppendString(pack.AppendString(raw, "_backend"), "xgrammar")
	return func(r *protocol.Request) { r.Sampling.StructuredOutputs = raw }
}

func constrainedText(key, text string) change { return constrained(key, pack.AppendString(nil, text)) }

func structured(t testing.TB, encoder Encoder) *Structured {
	t.Helper()
	return &Structured{Source: Random{Seed: 1, Vocab: 200}, Encoder: encoder, Seed: 1}
}

const testEOS = 2

func TestStructuredOutputs(t *testing.T) {
	e := newByteEncoder(t)
	schema := pack.AppendMapHeader(nil, 2)
	schema = pack.AppendString(pack.AppendString(schema, "type"), "array")
	schema = pack.AppendFloat64(pack.AppendString(schema, "minItems"), 2) // as a client may write it
	choices := pack.AppendString(pack.AppendString(pack.AppendArrayHeader(nil, 2), "yes"), "no \"!\"")
	for _, tt := range []struct {
		name   string
		change change
		want   string
	}{
		{"schema as text", constrainedText("json", `{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]}`), `\{"a":\d+\}`},
		{"schema as a map", constrained("json", schema), `\[.*,.*\]`},
		{"any object", constrained("json_object", pack.AppendBool(nil, true)), `\{.*\}`},
		{"expression", constrainedText("regex", `[a-z]{3}\d+`), `[a-z]{3}\d+`},
		{"choice", constrained("choice", choices), `yes|no "!"`},
		{"grammar", constrainedText("grammar", `root ::= "x" [yz]+`), `x[yz]+`},
		{"tag", constrainedText("structural_tag", `{"type":"structural_tag","format":{"type":"const_string","value":"hi é"}}`), `hi é`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := ran(t, Options{Source: structured(t, e)}, ask("a", count(0, 4), 1000, eos(testEOS), tt.change))
			got := r.answer("a")
			tokens := got.tokens()
			if len(tokens) == 0 || tokens[len(tokens)-1] != testEOS || got.finish != protocol.FinishStop || got.stop != "" {
				t.Fatalf("said %v, finished by %v, stop reason %q", tokens, got.finish, got.stop)
			}
			text := e.decode(tokens[:len(tokens)-1])
			if !regexp.MustCompile(`\A(?:` + tt.want + `)\z`).MatchString(text) {
				t.Errorf("said %q, want %s", text, tt.want)
			}
		})
	}
}

func TestStructuredOutputsWithinABudget(t *testing.T) {
	e := newByteEncoder(t)
	array := constrainedText("json", `{"type":"array","items":{"type":"string"},"minItems":1}`)
	for _, tt := range []struct {
		name   string
		max    int
		change []change
		text   string // of the tokens but the last, if they end
		finish protocol.FinishReason
		stop   string
	}{
		{"the shortest fits", 5, []change{array, eos(testEOS)}, `[""]`, protocol.FinishStop, ""},
		{"no room for its end", 4, []change{array, eos(testEOS)}, `[""]`, protocol.FinishLength, ""},
		{"cut off", 2, []change{array, eos(testEOS)}, `["`, protocol.FinishLength, ""},
		{"nothing may be said", 0, []change{array, eos(testEOS)}, ``, protocol.FinishLength, ""},
		{"a stop id ends it", 5, []change{array, stopAt(77, 78)}, `[""]`, protocol.FinishStop, pack1(77)},
		{"a long one is cut off", 9, []change{constrainedText("regex", "(abc){1000}"), eos(testEOS)}, `abcabcabc`, protocol.FinishLength, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := ran(t, Options{Source: structured(t, e)}, ask("a", count(0, 4), tt.max, tt.change...))
			got := r.answer("a")
			tokens := got.tokens()
			if tt.finish == protocol.FinishStop {
				tokens = tokens[:len(tokens)-1]
			}
			if text := e.decode(tokens); text != tt.text || got.finish != tt.finish || got.stop != tt.stop {
				t.Errorf("said %q, finished by %v %q, want %q, %v %q", text, got.finish, got.stop, tt.text, tt.finish, tt.stop)
			}
		})
	}
}

// With ignore_eos nothing ends a text, and a benchmark gets the tokens it asked for.
func TestStructuredOutputsThatNothingEnds(t *testing.T) {
	e := newByteEncoder(t)
	ignored := func(r *protocol.Request) { r.Sampling.IgnoreEOS = true }
	r := newRig(t, Options{Source: structured(t, e)}, 1)
	r.add(ask("a", count(0, 4), 30, constrainedText("regex", "yes"), eos(testEOS), ignored), 0)
	r.runAll()
	got := r.answer("a")
	if text := e.decode(got.tokens()[:3]); text != "yes" || len(got.tokens()) != 30 || got.finish != protocol.FinishLength {
		t.Errorf("said %q and %d tokens, finished by %v", text, len(got.tokens()), got.finish)
	}
}

func TestStructuredOutputsAreSeeded(t *testing.T) {
	say := func(id string, changes ...change) []uint32 {
		s := structured(t, newByteEncoder(t))
		script, err := s.Script(forSource(ask(id, nil, 1000, append(changes, constrainedText("regex", "[a-z]{20}"), eos(testEOS))...)))
		must(t, err)
		return script.Tokens
	}
	seed := func(r *protocol.Request) { r.Sampling.HasSeed, r.Sampling.Seed = true, 7 }
	if !slices.Equal(say("a"), say("a")) || slices.Equal(say("a"), say("b")) {
		t.Error("texts depend on the request's id, and on nothing else")
	}
	if !slices.Equal(say("a", seed), say("b", seed)) || slices.Equal(say("a", seed), say("a")) {
		t.Error("a request's own seed goes before its id")
	}
}

func TestConstraintsThatCannotBeHonoured(t *testing.T) {
	two := pack.AppendString(pack.AppendString(pack.AppendMapHeader(nil, 2), "regex"), "a")
	two = pack.AppendString(pack.AppendString(two, "grammar"), "root ::= \"a\"")
	raw := func(b []byte) change { return func(r *protocol.Request) { r.Sampling.StructuredOutputs = b } }
	for _, tt := range []struct {
		name   string
		change change
		want   string
	}{
		{"no schema", constrainedText("json", `{"type":`), "unexpected EOF"},
		{"contradiction", constrainedText("json", `{"type":"integer","minimum":4,"maximum":2}`), "no text conforms to it"},
		{"no grammar", constrainedText("grammar", `root ::= nope`), `rule "nope" is used and nowhere defined`},
		{"no expression", constrainedText("regex", `[a-z`), "missing closing ]"},
		{"no constraint", raw(pack.AppendMapHeader(nil, 0)), "no constraint is given"},
		{"two", raw(two), "only one kind"},
		{"no text", constrained("regex", pack.AppendInt(nil, 7)), "regex: "},
		{"no JSON", constrained("json", pack.AppendExt(nil, 3, []byte("x"))), "json: "},
		{"no map", raw(pack.AppendInt(nil, 7)), "expected map"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := structured(t, newByteEncoder(t))
			_, err := s.Script(forSource(ask("a", count(0, 4), 10, tt.change, eos(testEOS))))
			var refusal *Refusal
			if !errors.As(err, &refusal) || refusal.Code != "validation_error" {
				t.Fatalf("got %v, want a refusal", err)
			}
			if text := err.Error(); !strings.HasPrefix(text, "invalid structured outputs: ") || !strings.Contains(text, tt.want) {
				t.Errorf("got %q, want %q in it", text, tt.want)
			}
			// Others are not concerned.
			if script, err := s.Script(forSource(ask("b", count(0, 4), 10))); err != nil || script.Fill == nil {
				t.Errorf("the next request gets %v, %v", script, err)
			}
		})
	}
}

// A vocabulary that cannot spell one text may spell another.
func TestTextsThatCannotBeSpelt(t *testing.T) {
	e := newByteEncoder(t)
	e.lacks = "é"
	for seed := range uint64(8) {
		s := structured(t, e)
		s.Seed = seed
		script, err := s.Script(forSource(ask("a", nil, 10, constrainedText("regex", "é|è"), eos(testEOS))))
		must(t, err)
		if text := e.decode(script.Tokens[:len(script.Tokens)-1]); text != "è" {
			t.Errorf("seed %d: said %q", seed, text)
		}
	}
	_, err := structured(t, e).Script(forSource(ask("a", nil, 10, constrainedText("regex", "é+"), eos(testEOS))))
	var refused *Refusal
	if !errors.As(err, &refused) || !errors.Is(err, errSpelling) {
		t.Errorf("got %v, want a refusal", err)
	}
}

// A text that is cut off ends with a whole character: half of one cannot be spelt.
func TestTextsAreCutBetweenCharacters(t *testing.T) {
	e := newByteEncoder(t)
	s := structured(t, e)
	l, err := s.language(ask("a", nil, 1, constrainedText("regex", "€{200}")).Sampling.StructuredOutputs)
	must(t, err)
	for limit := 1; limit < 20; limit++ {
		ids, whole, err := s.tokens(l, 1, 0, limit)
		if want := strings.Repeat("€", limit/3); err != nil || whole || e.decode(ids) != want {
			t.Errorf("limit %d: %q, whole %v, %v, want %q", limit, e.decode(ids), whole, err, want)
		}
	}
}

// Ranks of one process share a source.
func TestStructuredIsSafeForConcurrentUse(t *testing.T) {
	var log strings.Builder
	s := structured(t, newByteEncoder(t))
	silent := &Structured{Source: s.Source, Log: slog.New(slog.NewTextHandler(&log, nil))}
	var requests []*protocol.Request
	for i := range 8 {
		pattern := fmt.Sprintf("[a-z]{%d}", i%3+1)
		schema := fmt.Sprintf(`{"type":"array","items":{"$ref":"#/$defs/x"},"minItems":%d,"$defs":{"x":{"enum":["é",1]}}}`, i%2)
		requests = append(requests, ask(fmt.Sprint(i), nil, 100, constrainedText("regex", pattern), eos(testEOS)),
			ask(fmt.Sprint(i), nil, 100, constrainedText("json", schema), eos(testEOS)))
	}
	var want [][]uint32
	for _, r := range requests {
		script, err := structured(t, s.Encoder).Script(forSource(r))
		must(t, err)
		want = append(want, script.Tokens)
	}
	var running sync.WaitGroup
	for range 4 {
		running.Go(func() {
			for i, r := range requests {
				script, err := s.Script(forSource(r))
				if err != nil || !slices.Equal(script.Tokens, want[i]) {
					t.Errorf("request %d says %v, %v, want %v", i, script.Tokens, err, want[i])
				}
				if _, err := silent.Script(forSource(r)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	running.Wait()
	if n := strings.Count(log.String(), "\n"); n != 1 {
		t.Errorf("%d warnings: %s", n, log.String())
	}
}

func TestWithoutATokenizerOneWarning(t *testing.T) {
	var log strings.Builder
	s := &Structured{Source: Random{Seed: 1, Vocab: 200}, Log: slog.New(slog.NewTextHandler(&log, nil))}
	for range 3 {
		if script, err := s.Script(forSource(ask("a", count(0, 4), 10, constrainedText("regex", "a")))); err != nil || script.Fill == nil {
			t.Fatalf("got %v, %v, want what the source says", script, err)
		}
	}
	if n := strings.Count(log.String(), "\n"); n != 1 || !strings.Contains(log.String(), "without a tokenizer") {
		t.Errorf("%d lines: %s", n, log.String())
	}
}

// Clients repeat their constraints: these are compiled once, and not kept for ever.
func TestConstraintsAreCompiledOnce(t *testing.T) {
	s := structured(t, newByteEncoder(t))
	var all []change
	for i := range mostLanguages + 2 {
		all = append(all, constrainedText("regex", strings.Repeat("a", i+1)))
	}
	for _, c := range all {
		if _, err := s.Script(forSource(ask("a", nil, 10, c, eos(testEOS)))); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(s.languages); n != 2 {
		t.Errorf("%d constraints are kept after %d, want those since they were too many", n, len(all))
	}
	raw := ask("a", nil, 10, all[len(all)-1]).Sampling.StructuredOutputs
	first, err := s.language(raw)
	must(t, err)
	if second, err := s.language(raw); err != nil || first != second {
		t.Errorf("compiled again: %v", err)
	}
}

func TestConstraintsKeepTheOrderOfTheirMembers(t *testing.T) {
	raw := pack.AppendMapHeader(nil, 1)
	raw = pack.AppendMapHeader(pack.AppendString(raw, "json"), 3)
	raw = pack.AppendBool(pack.AppendString(raw, "z"), false)
	raw = pack.AppendString(pack.AppendString(raw, "a\n\""), "é\\")
	raw = pack.AppendArrayHeader(pack.AppendString(raw, "m"), 4)
	raw = pack.AppendFloat64(pack.AppendUint(pack.AppendInt(pack.AppendNil(raw), -5), 1<<63), 0.25)
	got, err := decodeConstraint(raw)
	must(t, err)
	want := `{"z":false,"a\u000a\"":"é\\","m":[null,-5,9223372036854775808,0.25]}`
	if diff := cmp.Diff(want, got.Text); diff != "" {
		t.Error(diff)
	}
}
