package player

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/vllm-vcr/conformance/internal/engine/grammar"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
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

// constrained sets what a request's output must conform to, as a map of one key, and who compiles it: xgrammar unless given.
func constrained(key string, value []byte, by string) change {
	raw := append(pack.AppendString(pack.AppendMapHeader(nil, 2), key), value...)
	raw = pack.AppendString(pack.AppendString(raw, "_backend"), cmp.Or(by, "xgrammar"))
	return func(r *protocol.Request) { r.Sampling.StructuredOutputs = raw }
}

func constrainedText(key, text string) change { return constrained(key, arg(text), "") }

func structured(t testing.TB, encoder Encoder) *Structured {
	t.Helper()
	return &Structured{Source: Random{Seed: 1, Vocab: 200}, Encoder: encoder, Seed: 1}
}

// made is what a source answers, at once or later.
func made(s Source, r *Request) (Script, error) {
	answer, err := s.Script(r)
	if err == nil && answer.Later != nil {
		return answer.Later(context.Background())
	}
	return answer, err
}

const testEOS = 2

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
		{"too long", constrainedText("json", strings.Repeat(" ", 2<<20)), "bytes: at most"},
		{"far too long", constrainedText("json", strings.Repeat(" ", 5<<20)), "bytes: at most"},
		{"contradiction", constrainedText("json", `{"type":"integer","minimum":4,"maximum":2}`), "no text conforms to it"},
		{"no grammar", constrainedText("grammar", `root ::= nope`), `rule "nope" is used and nowhere defined`},
		{"no expression", constrainedText("regex", `[a-z`), "missing closing ]"},
		{"no constraint", raw(pack.AppendMapHeader(nil, 0)), "no constraint is given"},
		{"two", raw(two), "only one kind"},
		{"no text", constrained("regex", arg(7), ""), "regex: "},
		{"no JSON", constrained("json", pack.AppendExt(nil, 3, []byte("x")), ""), "a JSON schema is an object"},
		{"no map", raw(pack.AppendInt(nil, 7)), "expected map"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := structured(t, newByteEncoder(t))
			_, err := made(s, forSource(ask("a", count(0, 4), 10, tt.change, eos(testEOS))))
			var refusal *Refusal
			if !errors.As(err, &refusal) || refusal.Code != "validation_error" {
				t.Fatalf("got %v, want a refusal", err)
			}
			if text := err.Error(); !strings.HasPrefix(text, "invalid structured outputs: ") || !strings.Contains(text, tt.want) {
				t.Errorf("got %q, want %q in it", text, tt.want)
			}
			// Others are not concerned.
			if script, err := made(s, forSource(ask("b", count(0, 4), 10))); err != nil || script.Fill == nil {
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
		script, err := made(s, forSource(ask("a", nil, 10, constrainedText("regex", "é|è"), eos(testEOS))))
		must(t, err)
		require.Equal(t, e.decode(script.Tokens[:len(script.Tokens)-1]), "è", "seed %d: said", seed)
	}
	_, err := made(structured(t, e), forSource(ask("a", nil, 10, constrainedText("regex", "é+"), eos(testEOS))))
	var refused *Refusal
	require.True(t, errors.As(err, &refused) && errors.Is(err, errSpelling), "got %v, want a refusal", err)
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
		script, err := made(structured(t, s.Encoder), forSource(r))
		must(t, err)
		want = append(want, script.Tokens)
	}
	var running sync.WaitGroup
	for range 4 {
		running.Go(func() {
			for i, r := range requests {
				script, err := made(s, forSource(r))
				if err != nil || !slices.Equal(script.Tokens, want[i]) {
					t.Errorf("request %d says %v, %v, want %v", i, script.Tokens, err, want[i])
				}
				if _, err := made(silent, forSource(r)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	running.Wait()
	require.Equal(t, strings.Count(log.String(), "\n"), 1, "warnings: %s", log.String())
}

func TestWithoutATokenizerOneWarning(t *testing.T) {
	var log strings.Builder
	s := &Structured{Source: Random{Seed: 1, Vocab: 200}, Log: slog.New(slog.NewTextHandler(&log, nil))}
	for range 3 {
		if script, err := made(s, forSource(ask("a", count(0, 4), 10, constrainedText("regex", "a")))); err != nil || script.Fill == nil {
			t.Fatalf("got %v, %v, want what the source says", script, err)
		}
	}
	if n := strings.Count(log.String(), "\n"); n != 1 || !strings.Contains(log.String(), "Without --tokenizer") {
		t.Errorf("%d lines: %s", n, log.String())
	}
}

// Clients repeat their constraints: these are compiled once, and not kept for ever.
func TestConstraintsAreCompiledOnce(t *testing.T) {
	s := structured(t, newByteEncoder(t))
	var all []change
	for i := range maxLanguages + 2 {
		all = append(all, constrainedText("regex", strings.Repeat("a", i+1)))
	}
	for _, c := range all {
		if _, err := made(s, forSource(ask("a", nil, 10, c, eos(testEOS)))); err != nil {
			t.Fatal(err)
		}
	}
	require.Equal(t, len(s.languages.kept), 2, "constraints kept after %d: those since they were too many", len(all))
	raw := ask("a", nil, 10, all[len(all)-1]).Sampling.StructuredOutputs
	first, err := s.language(grammar.NewWork(t.Context()), raw)
	must(t, err)
	if second, err := s.language(grammar.NewWork(t.Context()), raw); err != nil || first != second {
		t.Errorf("compiled again: %v", err)
	}
}

// A constraint that takes too long is that request's error, and no cached one lets it go on.
func TestConstraintsThatTakeTooLong(t *testing.T) {
	var branches strings.Builder
	for i := range 40 {
		fmt.Fprintf(&branches, `"s%d":{"anyOf":[{"$ref":"#/$defs/s%d"},{"$ref":"#/$defs/s%d"}]},`, i, i+1, i+1)
	}
	schema := `{"$ref":"#/$defs/s0","$defs":{` + branches.String() + `"s40":false}}`
	longText := `{"type":"array","items":{"type":"string"},"minItems":12000,"uniqueItems":true}`
	for name, change := range map[string]change{
		"branches": constrainedText("json", schema), "a long text": constrainedText("json", longText),
		"a list that takes long to read": constrainedText("json", "["+strings.Repeat("[],", 300_000)+"[]]"),
	} {
		t.Run(name, func(t *testing.T) {
			r := ran(t, Options{Source: structured(t, newByteEncoder(t))}, ask("a", count(0, 4), 9000, change, eos(testEOS)), ask("b", count(0, 4), 2))
			if got := r.answer("a"); got.finish != protocol.FinishError || !strings.Contains(got.err, "validation_error: invalid structured outputs: ") ||
				!strings.Contains(got.err, "takes too long") {
				t.Errorf("finished by %v: %s", got.finish, got.err)
			}
			if got := r.answer("b"); len(got.tokens()) != 2 {
				t.Errorf("the other request finished by %v: %s", got.finish, got.err)
			}
			if len(r.refused) != 1 || r.held() != 0 || r.busy() {
				t.Errorf("OnRefused was told %q, %d blocks are held", r.refused, r.held())
			}
		})
	}
}

// slow is a source whose answers to some requests come when the test says so.
type slow struct {
	Source
	begun chan context.Context
	goOn  chan error
}

func newSlow() *slow { return &slow{Random{Vocab: 200}, make(chan context.Context), make(chan error)} }

func (s *slow) Script(r *Request) (Script, error) {
	script, err := s.Source.Script(r)
	if !strings.HasPrefix(r.ID, "slow") {
		return script, err
	}
	return Script{CachedTokens: LookUp, Later: func(ctx context.Context) (Script, error) {
		select {
		case s.begun <- ctx:
		case <-ctx.Done():
			return Script{}, ctx.Err()
		}
		select {
		case err := <-s.goOn:
			return script, err
		case <-ctx.Done():
			return Script{}, ctx.Err()
		}
	}}, nil
}

// While an answer is made, other requests go on.
func TestAnswersAreMadeBesideTheEngine(t *testing.T) {
	source := newSlow()
	s := connect(t, Options{Source: source}, 1)
	s.submit(ask("slow-1", count(0, 4), 3), ask("slow-2", count(0, 4), 3), ask("a", count(0, 4), 5))
	<-source.begun
	got, _ := s.finished(0, 1)
	equal(t, "the other request", 5, len(got["a"].tokens))
	source.goOn <- nil
	<-source.begun // the second one begins after the first
	source.goOn <- &Refusal{"validation_error", errors.New("nothing conforms")}
	got, _ = s.finished(0, 2)
	equal(t, "the slow request", 3, len(got["slow-1"].tokens))
	equal(t, "the refused request", protocol.FinishError, got["slow-2"].finish)
}

// Nobody works for a request that was aborted, or after the player has ended.
func TestAnswersThatNobodyNeeds(t *testing.T) {
	source := newSlow()
	s := connect(t, Options{Source: source}, 1)
	s.submit(ask("slow-1", count(0, 4), 3))
	ctx := <-source.begun
	must(t, s.front.Abort(0, "slow-1"))
	<-ctx.Done()
	s.submit(ask("slow-1", count(0, 4), 2), ask("slow-2", count(0, 4), 3))
	<-source.begun // the id is free again
	source.goOn <- nil
	got, _ := s.finished(0, 1)
	equal(t, "the request of the same id", 2, len(got["slow-1"].tokens))
	ctx = <-source.begun
	s.stop()
	<-ctx.Done()
	must(t, s.wait())
}

// What is kept of constraints is bounded in bytes, too.
func TestLargeConstraintsAreNotKept(t *testing.T) {
	s := structured(t, newByteEncoder(t))
	for i := range 100 {
		list := pack.AppendArrayHeader(nil, 3)
		for k := range 3 {
			list = pack.AppendString(list, fmt.Sprint(i, k, strings.Repeat("a", 300_000)))
		}
		raw := ask("a", nil, 10, constrained("choice", list, "")).Sampling.StructuredOutputs
		l, err := s.language(grammar.NewWork(t.Context()), raw)
		must(t, err)
		if l.Size() < 900_000 {
			t.Fatalf("a constraint of %d bytes says that it holds %d", len(raw), l.Size())
		}
		held := 0
		for _, l := range s.languages.kept {
			held += l.Size()
		}
		if held != s.languages.held || held > maxHeld || held == 0 {
			t.Fatalf("%d bytes are kept, and %d counted", held, s.languages.held)
		}
	}
}
