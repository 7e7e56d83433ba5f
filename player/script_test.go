package player

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/vllm-vcr/conformance/internal/engine/kvtransfer"
	"github.com/vllm-vcr/conformance/internal/engine/latency"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/trace"
)

var update = flag.Bool("update", false, "rewrite what the scripts of testdata/scripts print")

// TestScripts runs testdata/scripts/*.txt, which is where a test of the player belongs: an engine without sockets, in virtual
// time, is asked, and what it says is compared. A file is a list of tests, each below its name:
//
//	== an abort lets the next one in
//	# Lines of commands, what they print after ----, and an empty line.
//	engine seqs=1
//	add a max=2
//	add b max=1
//	step
//	abort a
//	serve
//	----
//	a: 1471
//	b: 1790 length
//
// `go test ./player -run TestScripts -update` writes what is printed: read the difference. A line that the engine says to a
// client is "@TIME cCLIENT ID: TOKENS END | ID: …", without the time that is 0 and the client that is 0; an output without
// tokens is "-". Ids of tokens are a list such as 0-3,20, which stands for 0 1 2 3 20.
//
//	take NAME=VALUE…     a record for the next engine, which replays: prompt, output, chunks, finish, cached, ttft, gaps (ms),
//	                     without (ids, hashes, chunks or prompt), arrival (ms or none), images, request-id,
//	                     ended-by-frontend, error (CODE:MESSAGE, which may be tried again)
//	engine NAME=VALUE…   a new engine: see scriptOptions
//	show WORD…           tell more of each message: see script.details; "quiet" has steps without outputs, too; "whole" tells
//	                     at each serve what each request got as a whole, step by step, with the times where time passes
//	add ID NAME=VALUE…   a request: see scriptRequest; prompt=0-3 and max=9 unless they are given
//	abort ID…
//	call METHOD ARG…     a utility: arguments are JSON, or words
//	step [N], run        N steps; all that are due
//	serve                run and move the clock to what is due next, to the end
//	advance TIME         move the clock; until TIME makes the steps that end before
//	pull [ERROR], pulled ID
//	                     the engine's pull of a KV cache ends; another engine has pulled that of a request
//	wanted, late ID      another engine still wants what was kept of a request; has read it after the lease
//	waiting              the KV caches that requests wait for
//	plane, released      what the data plane was asked for; which KV caches of other engines nobody will pull
//	state, ready FIELD…  what is left in the engine; what it registers with
//	lines METHOD ARG…    the call at an engine of each line, from the newest on: lines that answer as the one before are left out
//
// `…` keeps words together that belong to one value.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/scripts/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no scripts", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			must(t, err)
			parts := strings.Split("\n"+string(text), "\n== ")
			for i, part := range parts[1:] {
				name, body, _ := strings.Cut(part, "\n")
				t.Run(name, func(t *testing.T) { parts[i+1] = name + "\n" + runScript(t, body) })
			}
			if now := strings.Join(parts, "\n== ")[1:]; *update && now != string(text) {
				must(t, os.WriteFile(file, []byte(now), 0o644))
			}
		})
	}
}

// runScript runs the blocks of one test and returns it with what they print.
func runScript(t *testing.T, body string) string {
	s := &script{t: t}
	blocks := strings.Split(strings.TrimRight(body, "\n"), "\n\n")
	for i, block := range blocks {
		commands, want, _ := strings.Cut(block+"\n", "----\n")
		for line := range strings.Lines(commands) {
			if words := wordsOf(line); len(words) > 0 && !strings.HasPrefix(words[0], "#") {
				s.do(words[0], words[1:])
			}
		}
		got := s.printed.String()
		s.printed.Reset()
		blocks[i] = strings.TrimRight(commands+"----\n"+got, "\n")
		if !*update {
			equal(t, commands, want, got)
		}
	}
	return strings.Join(blocks, "\n\n") + "\n"
}

func wordsOf(line string) []string {
	quoted := false
	words := strings.FieldsFunc(line, func(r rune) bool {
		quoted = quoted != (r == '`')
		return unicode.IsSpace(r) && !quoted
	})
	for i, word := range words {
		words[i] = strings.ReplaceAll(word, "`", "")
	}
	return words
}

// script is the state of one test.
type script struct {
	t       *testing.T
	printed strings.Builder
	takes   []trace.Record
	rig     *rig
	plane   *plane
	waves   *waves
	left    map[int]bool // ranks with requests, also while paused
	shown   map[string]bool
	refused int
	whole   map[string][]string // what requests got
	texts   map[string][]uint32 // the tokens of their texts
	encoder *byteEncoder        // which spells them
	order   []string            // their ids
}

func (s *script) print(format string, args ...any) { fmt.Fprintf(&s.printed, format+"\n", args...) }

func (s *script) do(command string, words []string) {
	s.t.Helper()
	switch command {
	case "take":
		s.takes = append(s.takes, s.take(pairs(s.t, words)))
		return
	case "engine":
		s.engine(pairs(s.t, words))
		return
	case "lines":
		s.lines(words)
		return
	case "waves":
		s.startWaves(pairs(s.t, words))
		return
	case "rank":
		s.wave(words[1], number(s.t, words[0]), pairs(s.t, words[2:]))
		return
	case "show":
		s.shown = map[string]bool{}
		for _, word := range words {
			s.shown[word] = true
		}
		return
	}
	if s.rig == nil {
		s.engine(nil)
	}
	s.drive(command, words)
	for _, refused := range s.rig.refused[s.refused:] {
		s.print("refused %s", refused)
	}
	s.refused = len(s.rig.refused)
}

// drive does what is done to an engine.
func (s *script) drive(command string, words []string) {
	s.t.Helper()
	r := s.rig
	switch command {
	case "add":
		if q := s.request(words[0], pairs(s.t, words[1:])); q.Sampling.IgnoreEOS {
			r.add(q, 0) // the codec writes requests as the Rust frontend, which knows no ignore_eos
		} else {
			r.submit(q)
		}
	case "abort":
		r.abort(words)
	case "call":
		r.call(0, words[0], arguments(words[1:])...)
	case "step":
		for range number(s.t, append(words, "1")[0]) {
			r.step()
			r.answerDrained()
		}
	case "run":
		r.run()
	case "serve":
		r.runAll()
		for _, id := range s.order {
			s.print("%s: %s", id, strings.Join(s.whole[id], " / "))
		}
		s.whole, s.texts, s.order = nil, nil, nil
		if r.busy() || r.held() != 0 {
			s.print("left: %d requests, %d blocks", len(r.byID), r.held())
		}
	case "advance":
		r.clock.advance(span(s.t, words[0]))
	case "until":
		r.runUntil(span(s.t, words[0]))
		r.clock.advance(start + span(s.t, words[0]) - r.clock.Now())
	case "pull": // ends, by an error if there is a word
		var err error
		if len(words) > 0 {
			err = errors.New(strings.Join(words, " "))
		}
		if slices.Equal(words, []string{"unreachable"}) {
			err = fmt.Errorf("engine: %w", kvtransfer.ErrHandshake)
		}
		s.plane.ends <- err
		r.hear()
	case "pulled", "wanted", "late": // what was kept of a request, by another engine
		events := s.plane.taken[words[0]]
		map[string]func(){"pulled": events.Taken, "wanted": events.Extended, "late": events.Late}[command]()
		r.hear()
	case "waiting":
		s.print("waiting for %s", s.plane.waiting)
	case "plane":
		s.print("offered %s, withdrawn %s; pulls by stage %v", s.plane.offered, s.plane.withdrawn, r.connector.stages[1:])
	case "released":
		s.plane.ends <- nil
		r.player.fetches.Wait()
		s.print("released %s", s.plane.released)
	case "ready": // fields of the registration
		ready := decoded(s.t, r.codec.AppendReady(nil, &r.player.ready)).(map[string]any)
		for _, name := range words {
			s.print("%s: %v", name, ready[name])
		}
	case "state":
		s.print("requests %d, running %d, blocks %d", len(r.byID), len(r.scheduler.Running()), r.held())
		if r.faulty != 0 {
			s.print("troubles %d", r.faulty)
		}
		if due, ok := r.nextDue(); ok {
			s.print("due at %v", due-start)
		}
	default:
		s.t.Fatalf("no command %q", command)
	}
}

// engine makes a new one, of which all that it says is printed in the moment when it says it.
func (s *script) engine(values map[string]string) {
	opt := scriptOptions(s.t, values)
	clients := number(s.t, cmp.Or(values["clients"], "1"))
	if s.takes != nil {
		size, version := blockSize, "0.33.0"
		opt.Trace = &trace.Trace{Name: "test.jsonl", Records: s.takes, Meta: trace.Meta{BlockSize: &size, VLLMVersion: &version}}
		for name, field := range map[string]**string{
			"config": &opt.Trace.Meta.EngineConfig, "registration": &opt.Trace.Meta.ReadyResponseHex, "version": &opt.Trace.Meta.VLLMVersion,
		} {
			if value, ok := values[name]; ok {
				*field = &value
			}
		}
		if values["trace-blocks"] == "none" {
			opt.Trace.Meta.BlockSize = nil
		}
	}
	s.takes = nil
	if _, err := New(opt); err != nil {
		s.print("error: %v", err)
		return
	}
	r := newRig(s.t, opt, clients)
	s.rig, s.refused = r, 0
	if opt.Transfer != nil {
		s.plane, _ = opt.Transfer.DataPlane.(*plane)
		s.t.Cleanup(r.player.startFetching(s.t.Context()))
	}
	r.send = func(client int, m protocol.ClientMessage) {
		before := len(r.envelopes)
		r.capture(client, m)
		if len(r.envelopes) > before {
			s.said(&r.envelopes[before])
		} else if s.shown["quiet"] {
			s.said(&r.quiet[len(r.quiet)-1])
		}
	}
}

// scriptOptions are the options of an engine by their short names.
func scriptOptions(t *testing.T, values map[string]string) Options {
	t.Helper()
	knobs := &latency.Knobs{}
	var opt Options
	for name, value := range values {
		n, _ := strconv.Atoi(value)
		duration, _ := time.ParseDuration(value)
		real, _ := strconv.ParseFloat(value, 64)
		switch name {
		case "clients", "config", "registration", "version", "trace-blocks": // of the script, or the recording
		case "line":
			opt.VLLMVersion = value
		case "seqs":
			opt.Limits.MaxNumSeqs = n
		case "budget":
			opt.Limits.MaxNumBatchedTokens = n
		case "context":
			opt.Limits.MaxModelLen = n
		case "long":
			opt.Limits.LongPrefillTokenThreshold = n
		case "policy":
			opt.SchedulingPolicy = SchedulingPolicy(value)
		case "block":
			opt.KVCache.BlockSize = n
		case "blocks":
			opt.KVCache.NumGPUBlocks = n
		case "caching":
			opt.KVCache.NoPrefixCaching = value == "off"
		case "seed":
			opt.Seed = uint64(n)
		case "vocab":
			opt.Vocab = uint32(n)
		case "match":
			opt.Replay.Match = Match(value)
		case "depth":
			opt.Replay.MinDepth = n
		case "strict":
			opt.Replay.Strict = true
		case "once":
			opt.Replay.Once = true
		case "source":
			if opt.Source = map[string]Source{"counting": counting{}, "echo": Echo{}}[value]; value == "structured" {
				opt.Source = structured(t, newByteEncoder(t))
			}
		case "script":
			opt.Source = scripted(t, value)
		case "index":
			opt.EngineIndex = n
		case "tasks":
			opt.Pooling.Tasks = strings.Split(value, ",")
		case "size":
			opt.Pooling.Size = n
		case "labels":
			opt.Pooling.Labels = n
		case "faults":
			opt.Faults = faults(t, value)
		case "request-faults":
			opt.RequestFaults = true
		case "loras":
			opt.LoRA.MaxLoRAs = n
		case "cpu-loras":
			opt.LoRA.MaxCPULoRAs = n
		case "lora-names":
			if opt.LoRA.Names = strings.Split(value, ","); value == "none" {
				opt.LoRA.Names = []string{}
			}
		case "iterations":
			opt.Observability.IterationDetails = true
		case "lives": // of so many of the blocks
			opt.Observability.KVCacheMetricsSample = real
		case "drafts":
			opt.Observability.RequestDrafts = RequestDrafts(value)
		case "guesses":
			opt.Decoding.SpeculativeTokens = n
		case "accepted":
			var accepted []float64
			for word := range strings.SplitSeq(value, ",") {
				rate, err := strconv.ParseFloat(word, 64)
				must(t, err)
				accepted = append(accepted, rate)
			}
			opt.Decoding.Acceptance = rates(t, accepted...)
		case "transfer", "plane", "lease", "on-failure":
			opt.Transfer = cmp.Or(opt.Transfer, &Transfer{})
			switch name {
			case "transfer":
				opt.Transfer.EngineID = value
			case "plane":
				opt.Transfer.DataPlane = newPlane()
			case "lease":
				opt.Transfer.Lease = duration
			case "on-failure":
				opt.Transfer.FailurePolicy = FailurePolicy(value)
			}
		case "pace":
			opt.Timing.Pace = Pace(value)
		case "scale":
			opt.Timing.Scale = real
		case "ttft":
			knobs.TimeToFirstToken = duration
		case "transfer-time":
			knobs.TransferLatency = duration
		case "itl":
			knobs.InterTokenLatency = duration
		case "prefill":
			knobs.PrefillOverhead = duration
		case "prefill-token":
			knobs.PrefillPerToken = duration
		case "load":
			knobs.LoadFactor = real
		default:
			t.Fatalf("no option %q of an engine", name)
		}
	}
	if opt.Timing.Pace == PaceModelled || opt.Timing.Pace == PaceAlone {
		opt.Timing.Latency = knobs
	}
	return opt
}

// scriptOf is a source that answers each request by one script.
type scriptOf Script

func (s scriptOf) Script(*Request) (Script, error) { return Script(s), nil }

// scripted is a source whose script has WORD=VALUE words: tokens, chunks, finish, fill (from a token on), stops.
func scripted(t *testing.T, text string) (s scriptOf) {
	t.Helper()
	for name, value := range pairs(t, strings.Fields(text)) {
		switch name {
		case "tokens":
			s.Tokens = ids(t, value)
		case "chunks":
			for n := range strings.SplitSeq(value, ",") {
				s.Chunks = append(s.Chunks, number(t, n))
			}
		case "finish":
			s.Finish = protocol.FinishReason(number(t, value))
		case "fill":
			first := number(t, value)
			s.Fill = func(position int) uint32 { return uint32(first + position) }
		case "stops":
			s.Stops = true
		}
	}
	return s
}

// take is a record of a trace.
func (s *script) take(values map[string]string) trace.Record {
	s.t.Helper()
	k := take{prompt: ids(s.t, cmp.Or(values["prompt"], "0-3")), output: ids(s.t, values["output"])}
	for name, value := range values {
		real, _ := strconv.ParseFloat(value, 64)
		switch name {
		case "prompt", "output", "arrival", "images", "request-id":
		case "chunks":
			for _, n := range ids(s.t, value) {
				k.chunks = append(k.chunks, int(n))
			}
		case "finish":
			var known bool
			if k.finish, known = trace.ParseFinishReason(value); !known {
				s.t.Fatalf("no finish %q", value)
			}
		case "cached":
			k.cached = number(s.t, value)
		case "ttft":
			k.ttft = real
		case "gaps":
			for gap := range strings.SplitSeq(value, ",") {
				real, err := strconv.ParseFloat(gap, 64)
				must(s.t, err)
				k.gaps = append(k.gaps, real)
			}
		case "without":
			k.without = value
		case "ended-by-frontend":
			k.left = true
		case "error":
			code, message, _ := strings.Cut(value, ":")
			k.error = &trace.RequestError{Code: code, Message: message, Retryable: true}
		default:
			s.t.Fatalf("no field %q of a take", name)
		}
	}
	rec := k.record(float64(len(s.takes)), len(s.takes)+2)
	must(s.t, rec.Validate())
	switch k.without {
	case "chunks":
		rec.ITLMs, rec.ITLTokens, rec.ITLSummary = nil, nil, &trace.ITLSummary{MeanMs: 1, Count: len(k.output) - 1}
	case "prompt":
		rec.PromptTokenIDs = nil
	case "prompt-and-hashes":
		rec.PromptTokenIDs, rec.BlockHashes = nil, nil
	case "prompt-and-half-the-hashes":
		rec.PromptTokenIDs, rec.BlockHashes = nil, rec.BlockHashes[:len(rec.BlockHashes)/2]
	}
	if arrival, err := strconv.ParseFloat(values["arrival"], 64); err == nil {
		rec.ArrivalMs = &arrival
	} else if values["arrival"] != "" {
		rec.ArrivalMs = nil
	}
	if images, ok := values["images"]; ok {
		rec.MMHashes = strings.Split(images, ",")
	}
	if id, ok := values["request-id"]; ok {
		rec.Extra = map[string]json.RawMessage{"request_id": json.RawMessage(id)}
	}
	return rec
}

// request is one of a client, by the short names of its fields.
func (s *script) request(id string, values map[string]string) *protocol.Request {
	s.t.Helper()
	q := ask(id, ids(s.t, cmp.Or(values["prompt"], "0-3")), 9)
	for name, value := range values {
		n, _ := strconv.Atoi(value)
		switch name {
		case "prompt":
		case "max":
			if q.Sampling.MaxTokens = n; value == "none" {
				unlimited(q)
			}
		case "min":
			minTokens(n)(q)
		case "stop":
			stopAt(ids(s.t, value)...)(q)
		case "eos":
			eos(int64(n))(q)
		case "allowed":
			q.Sampling.AllowedTokenIDs = ids(s.t, value)
		case "bad": // words, as 5/6,7
			for word := range strings.SplitSeq(value, "/") {
				q.Sampling.BadWords = append(q.Sampling.BadWords, ids(s.t, word))
			}
		case "bias": // TOKEN:LOGIT/...
			for bias := range strings.SplitSeq(value, "/") {
				token, logit, _ := strings.Cut(bias, ":")
				real, err := strconv.ParseFloat(logit, 64)
				must(s.t, err)
				q.Sampling.LogitBias = append(q.Sampling.LogitBias, protocol.Bias{Token: uint32(number(s.t, token)), Logit: real})
			}
		case "top-k":
			q.Sampling.TopK = n
		case "top-p", "min-p":
			real, err := strconv.ParseFloat(value, 64)
			must(s.t, err)
			*map[string]*float64{"top-p": &q.Sampling.TopP, "min-p": &q.Sampling.MinP}[name] = real
		case "repetition": // MOST,LEAST,COUNT
			_, err := fmt.Sscanf(value, "%d,%d,%d", &q.Sampling.Repetition.MaxSize, &q.Sampling.Repetition.MinSize, &q.Sampling.Repetition.Count)
			must(s.t, err)
		case "client":
			toClient(n)(q)
		case "priority":
			priority(n)(q)
		case "logprobs":
			logprobsOf(n)(q)
		case "prompt-logprobs":
			promptLogprobs(n)(q)
		case "scores":
			q.Sampling.PromptScores = []byte{0x91, 0x91, byte(n)}
		case "scores-beside": // ROWSxIDS of that number of bytes
			q.Sampling.PromptScores = s.beside(q, value, "<i8")
		case "embeds": // ROWSxSIZE, and what the bytes are: COUNT*BYTE/COUNT*BYTE
			if _, both := values["prompt"]; !both {
				q.PromptTokenIDs = nil
			}
			q.PromptEmbeds = s.beside(q, value, "bfloat16")
		case "promptless":
			q.PromptTokenIDs = nil
		case "read-cache":
			q.Sampling.HasSkipReading, q.Sampling.SkipReading = true, value == "no"
		case "salt":
			q.CacheSalt = value
		case "lora":
			adapted(value, int64(value[len(value)-1]-'0'))(q)
		case "image", "named": // HASH@OFFSET+LENGTH
			var hash string
			var offset, length int
			_, err := fmt.Sscanf(strings.NewReplacer("@", " ", "+", " ").Replace(value), "%s %d %d", &hash, &offset, &length)
			must(s.t, err)
			image(hash, offset, length, name == "named")(q)
		case "traceparent":
			q.TraceHeaders = pack.AppendString(pack.AppendString(pack.AppendMapHeader(nil, 1), "traceparent"), value)
		case "external":
			external(value)(q)
		case "fault":
			withFault(value)(q)
		case "fault-number":
			extra(faultArg, arg(n))(q)
		case "computing": // its prompt, for another engine
			computing(q)
		case "pulling": // the KV cache of another engine's request
			pulling(value)(q)
		case "prefilled": // by nobody knows whom
			transferred(params("do_remote_prefill", true))(q)
		case "aborted":
			q.AbortImmediately = true
		case "nothing-asked":
			q.HasSampling = false
		case "ignore-eos":
			q.Sampling.IgnoreEOS = true
		case "seed":
			q.Sampling.HasSeed, q.Sampling.Seed = true, int64(n)
		case "greedy":
			q.Sampling.Temperature = 0
		case "regex", "json", "grammar", "structural_tag":
			constrained(name, arg(value), values["by"])(q)
		case "choice": // TEXT/TEXT
			constrained(name, arg(strings.Split(value, "/")), values["by"])(q)
		case "json_object":
			constrained(name, arg(true), values["by"])(q)
		case "pool": // TASK, and what poolingParams reads
			q.HasSampling, q.Pooling = false, poolingParams(s.t, values)
		case "by", "raw", "dimensions", "late", "chunk", "skip": // of a constraint, of what is pooled
		case "pool-broken":
			q.HasSampling, q.Pooling = false, arg(3)
		case "params":
			transferred(arg(value))(q)
		case "port":
			transferred(params("remote_port", n))(q)
		default:
			s.t.Fatalf("no field %q of a request", name)
		}
	}
	return q
}

// beside is a tensor, ROWSxCOLUMNS=COUNT*BYTE/COUNT*BYTE, whose bytes are in an auxiliary frame of its own.
func (s *script) beside(q *protocol.Request, text, dtype string) []byte {
	s.t.Helper()
	shape, runs, _ := strings.Cut(text, "=")
	var rows, columns int
	_, err := fmt.Sscanf(shape, "%dx%d", &rows, &columns)
	must(s.t, err)
	var data []byte
	for run := range strings.SplitSeq(runs, "/") {
		times, value, _ := strings.Cut(run, "*")
		data = append(data, bytes.Repeat([]byte{byte(number(s.t, value))}, number(s.t, times))...)
	}
	q.Aux = append(q.Aux, data)
	return tensorBeside(dtype, rows, columns)
}

// poolingParams are PoolingParams as the frontend of 0.33 writes them.
func poolingParams(t *testing.T, values map[string]string) []byte {
	t.Helper()
	var activation, dimensions, skip, late, chunk any
	if _, raw := values["raw"]; raw {
		activation = false
	}
	if n, ok := values["dimensions"]; ok {
		dimensions = number(t, n)
	}
	if _, ok := values["skip"]; ok {
		skip = true
	}
	if mode, query, ok := strings.Cut(values["late"], ":"); ok {
		late = []any{mode, query, nil}
	}
	if n, ok := values["chunk"]; ok { // tokens a row
		chunk = []any{number(t, n)}
	}
	return packed(t, []any{activation, dimensions, nil, nil, values["pool"], false, skip, late, nil, 2, chunk})
}

// said prints a message to a client.
func (s *script) said(e *envelope) {
	var text []string
	if s.shown["whole"] && e.Utility == nil {
		s.keep(e)
		return
	}
	for _, out := range e.Outputs.Outputs {
		text = append(text, fmt.Sprintf("%s: %s", out.ID, s.output(e, out)))
	}
	line := strings.Join(text, " | ")
	if u := e.Utility; u != nil {
		if line = "failed: " + u.Failure; !u.Failed {
			line = pack.Format(u.Result)
		}
		if len(text) > 0 || e.SchedulerStats != nil || len(e.FinishedRequests) > 0 || e.WeightVersion != "" {
			line += ", AND MORE"
		}
	}
	if e.client != 0 {
		line = fmt.Sprintf("c%d %s", e.client, line)
	}
	if e.at != 0 {
		line = fmt.Sprintf("@%v %s", e.at, line)
	}
	if stamped := time.Duration((e.Timestamp - start.Seconds()) * 1e9).Round(time.Microsecond); s.shown["stamps"] && e.Utility == nil {
		line += fmt.Sprintf(" (stamped %v)", stamped)
	}
	if len(e.FinishedRequests) > 0 {
		line += fmt.Sprintf(" (finished %s)", e.FinishedRequests)
	}
	s.print("%s%s", line, s.details(e))
}

// keep notes what requests got until they are told as a whole.
func (s *script) keep(e *envelope) {
	for _, out := range e.Outputs.Outputs {
		if s.whole == nil {
			s.whole, s.texts = map[string][]string{}, map[string][]uint32{}
		}
		id := string(out.ID)
		if s.whole[id] == nil {
			s.order = append(s.order, id)
		}
		if s.shown["text"] {
			s.texts[id] = append(s.texts[id], out.Tokens...)
			s.whole[id] = []string{s.spelt(out, s.texts[id])}
			continue
		}
		text := s.output(e, out)
		if e.at != 0 {
			text = fmt.Sprintf("@%v %s", e.at, text)
		}
		s.whole[id] = append(s.whole[id], text)
	}
}

// spelt is what a request got up to an output, as a text that ends with $ if a token ended it.
func (s *script) spelt(out protocol.RequestOutput, tokens []uint32) string {
	if s.encoder == nil {
		s.encoder = newByteEncoder(s.t)
	}
	text := fmt.Sprintf("%#q", strings.ReplaceAll(s.encoder.decode(tokens), "\x00", "$"))
	out.Tokens = nil
	return text + strings.TrimPrefix(s.output(nil, out), "-")
}

// output is what one request gets.
func (s *script) output(e *envelope, out protocol.RequestOutput) string {
	text := "-"
	if len(out.Tokens) > 0 {
		text = strings.Trim(fmt.Sprint(out.Tokens), "[]")
	}
	if out.Finish != protocol.Unfinished {
		text += " " + out.Finish.String()
	}
	if out.StopReason != nil {
		text += " stop_reason=" + pack.Format(out.StopReason)
	}
	if reason := s.rig.errorOf(out); reason != "" {
		text += " " + reason
	}
	if out.TraceHeaders != nil {
		text += " trace_headers=" + pack.Format(out.TraceHeaders)
	}
	if out.Drafts != nil {
		text += " spec_decode_metrics=" + pack.Format(out.Drafts)
	}
	if out.CacheMisses != nil {
		text += " mm_cache_miss_hashes=" + pack.Format(out.CacheMisses)
	}
	if out.Pooling != nil {
		text += " " + tensorText(floats(s.t, out.Pooling, e.aux))
	}
	if s.shown["transfer"] && out.KVTransfer != nil {
		text += " " + pack.Format(out.KVTransfer)
	}
	if s.shown["logprobs"] {
		text += tableText("logprobs", readTable(s.t, out.Logprobs, e.aux))
		text += tableText("prompt", readTable(s.t, out.PromptLogprobs, e.aux))
	}
	if s.shown["events"] && out.Events != nil {
		for _, event := range decoded(s.t, out.Events).([]any) {
			at := time.Duration((event.(map[string]any)["timestamp"].(float64) - start.Seconds()) * 1e9).Round(time.Microsecond)
			text += fmt.Sprintf(" %s@%v", []string{"", "queued", "scheduled", "preempted"}[event.(map[string]any)["type"].(int64)], at)
		}
	}
	if s.shown["prefill"] && out.Prefill != nil {
		p := decoded(s.t, out.Prefill).(map[string]any)
		text += fmt.Sprintf(" (prompt of %v: computed %v, cached %v, here %v, elsewhere %v, created %v)", p["num_prompt_tokens"], p["num_computed_tokens"],
			p["num_cached_tokens"], p["num_local_cached_tokens"], p["num_external_cached_tokens"], p["num_cache_creation_tokens"])
	}
	return text
}

// tensorText is a tensor: its shape, and of each row the length, the sum and the first value.
func tensorText(shape []int, values []float64) string {
	text := fmt.Sprint(shape)
	size := 1
	if len(shape) > 0 {
		size = shape[len(shape)-1]
	}
	for row := range slices.Chunk(values, size) {
		square, sum := 0.0, 0.0
		for _, v := range row {
			square, sum = square+v*v, sum+v
		}
		text += fmt.Sprintf(" length=%.3f,sum=%.3f,first=%.3f", math.Sqrt(square), sum, row[0])
		if len(values) > 100 {
			return text + fmt.Sprintf(" … %d values", len(values))
		}
	}
	return text
}

// tableText is a table of log-probabilities: for each token its ids with their values, and its rank.
func tableText(name string, table *table) string {
	if table == nil {
		return ""
	}
	text := fmt.Sprintf(" %s=%s", name, table.types)
	for i, ids := range table.ids {
		text += " ["
		for k, id := range ids {
			text += fmt.Sprintf("%d:%.2f ", id, table.values[i][k])
		}
		text += fmt.Sprintf("rank %d]", table.ranks[i])
	}
	return text
}

// lines prints what engines of each line answer to a call.
func (s *script) lines(words []string) {
	var last string
	for _, line := range protocol.Lines() {
		answer := newRig(s.t, Options{VLLMVersion: line, LoRA: LoRAOptions{MaxLoRAs: 4}}, 1).do(words[0], arguments(words[1:])...)
		if answer != last {
			s.print("%s: %s", line, answer)
		}
		last = answer
	}
}

// details are what is shown of a message besides its outputs: "gauges" and "lookups" of the scheduler and its prefix cache,
// "resets" of that, "weights" for the version of these, or any member of the statistics by its name.
func (s *script) details(e *envelope) (text string) {
	if s.shown["weights"] && e.WeightVersion != "" {
		text += " weights=" + e.WeightVersion
	}
	stats := e.stats(s.t)
	if stats == nil {
		return text
	}
	cache := stats["prefix_cache_stats"].(map[string]any)
	for _, word := range slices.Sorted(maps.Keys(s.shown)) {
		switch value, known := stats[word]; {
		case word == "gauges":
			text += fmt.Sprintf(" running=%v waiting=%v skipped=%v usage=%.3g", stats["num_running_reqs"], stats["num_waiting_reqs"],
				cmp.Or(fmt.Sprint(stats["num_skipped_waiting_reqs"]), "0"), stats["kv_cache_usage"])
		case word == "lookups":
			text += fmt.Sprintf(" lookups=%v/%v/%v", cache["requests"], cache["queries"], cache["hits"])
		case word == "resets" && cache["reset"] == true:
			text += " reset"
		case known && value != nil:
			text += fmt.Sprintf(" %s=%v", word, value)
		}
	}
	return text
}

// startWaves prints what the ranks of a group are told of their waves.
func (s *script) startWaves(values map[string]string) {
	_, part := values["part"] // the other ranks are elsewhere
	s.waves, s.left = newWaves(values["line"], 3, !part), map[int]bool{}
	s.waves.subscribe(0, func(wave int) { s.print("begin %d", wave) }, func(wave int) { s.print("end %d", wave) })
}

// wave is what happens to a rank: it is added a request, told to begin a wave by an engine, which is excluded, or by the
// frontend, out of work, paused or resumed.
func (s *script) wave(does string, rank int, values map[string]string) {
	wave, w := number(s.t, cmp.Or(values["wave"], "0")), s.waves
	switch does {
	case "add":
		s.left[rank] = true
		if begun := w.requestAdded(rank, rank, wave); begun >= 0 {
			s.print("begin %d", begun)
		}
	case "begin":
		w.begin(rank, rank, wave, number(s.t, cmp.Or(values["by"], "-1")))
	case "idle", "pause", "resume":
		s.left[rank] = s.left[rank] && does != "idle"
		w.setWork(rank, s.left[rank] && does == "resume", does == "pause")
	case "at":
		s.print("at %d %d %d", w.current(0), w.current(1), w.current(2))
	default:
		s.t.Fatalf("no command %q of a rank", does)
	}
}

// pairs reads NAME=VALUE words; a word alone has an empty value.
func pairs(t *testing.T, words []string) map[string]string {
	t.Helper()
	values := map[string]string{}
	for _, word := range words {
		name, value, _ := strings.Cut(word, "=")
		if _, twice := values[name]; twice {
			t.Fatalf("%s is given twice", name)
		}
		values[name] = value
	}
	return values
}

// ids reads a list such as 0-3,20; "none" is an empty one.
func ids(t *testing.T, text string) (all []uint32) {
	t.Helper()
	if text == "" {
		return nil
	}
	if text == "none" {
		return []uint32{}
	}
	for part := range strings.SplitSeq(text, ",") {
		first, last, ranged := strings.Cut(part, "-")
		from := number(t, first)
		if !ranged {
			last = first
		}
		all = append(all, count(uint32(from), number(t, last)-from+1)...)
	}
	return all
}

// argument is what a word of a call stands for: JSON, a string of Go, an adapter such as lora:NAME:7, lora7 of which has the fields of 0.31,
// or the word itself.
func argument(word string) any {
	if rest, old := strings.CutPrefix(word, "lora7:"); old {
		name, id, _ := strings.Cut(rest, ":")
		n, _ := strconv.Atoi(id)
		b := pack.AppendString(pack.AppendInt(pack.AppendString(pack.AppendArrayHeader(nil, 7), name), int64(n)), "/adapters/"+name)
		return pack.AppendBool(pack.AppendBool(pack.AppendNil(pack.AppendNil(b)), false), false)
	}
	if name, id, ok := strings.Cut(strings.TrimPrefix(word, "lora:"), ":"); ok {
		n, _ := strconv.Atoi(id)
		return lora(name, n)
	}
	if n, err := strconv.Atoi(word); err == nil {
		return n
	}
	var list []string
	if json.Unmarshal([]byte(word), &list) == nil {
		if list == nil {
			return nil
		}
		return list
	}
	if b, err := strconv.ParseBool(word); err == nil {
		return b
	}
	if word == "{}" {
		return pack.AppendMapHeader(nil, 0)
	}
	if text, err := strconv.Unquote(word); err == nil {
		return text
	}
	return word
}

func arguments(words []string) (args []any) {
	for _, word := range words {
		args = append(args, argument(word))
	}
	return args
}

func number(t *testing.T, word string) int {
	t.Helper()
	n, err := strconv.Atoi(word)
	must(t, err)
	return n
}

func span(t *testing.T, word string) time.Duration {
	t.Helper()
	d, err := time.ParseDuration(word)
	must(t, err)
	return d
}
