package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/pflag"

	"github.com/vllm-vcr/conformance/internal/base/process"
	"github.com/vllm-vcr/conformance/internal/engine/dataset"
	"github.com/vllm-vcr/conformance/internal/engine/latency"
	"github.com/vllm-vcr/conformance/internal/engine/tokenizer"
	"github.com/vllm-vcr/conformance/internal/inspect"
	"github.com/vllm-vcr/conformance/internal/serve/answers"
	"github.com/vllm-vcr/conformance/internal/serve/builtin"
	"github.com/vllm-vcr/conformance/player"
	"github.com/vllm-vcr/conformance/trace"
)

// sourceOptions are the flags of the player's answers.
type sourceOptions struct {
	mode      string
	recording string
	steps     string // a trace whose tokens do not count
	match     player.Match
	dataset   string
	tokenizer string
	minDepth  int
	once      bool
	strict    bool
	vocab     uint32
	seed      uint64
	// deterministic leaves the ids of requests out of what is drawn.
	deterministic bool
	length        string   // of answers that are made up
	context       int      // context length of requests, if it is not that of the engine
	randomRow     bool     // a row of the dataset answers where none has the prompt
	sentences     []string // more of them than those of the player
	toolParser    string   // of the frontend; "" is hermes
	reasoning     string   // parser of reasoning: then sentences follow some reasoning
	// configHash is what all recordings must have been made with; empty is any.
	configHash string
	// sha256 is that of the bytes of recording; empty is any.
	sha256 string
	// plans are answers that the builtin frontend chooses; nil for none.
	plans *builtin.Plans
	// chosen are answers that rules choose; nil for none.
	chosen *answers.Store
	// loaded is the tokenizer, once it is read.
	loaded *tokenizer.Tokenizer
}

const (
	modeRandom = "random"
	modeText   = "text"
	modeEcho   = "echo"
)

func (opts *sourceOptions) add(flags *pflag.FlagSet) {
	flags.StringVar(&opts.recording, "trace", "", "answer requests with the output tokens of this trace `FILE`, .jsonl or .jsonl.gz, or at an s3://, https:// or hf:// location")
	flags.StringVar(&opts.steps, "replay-steps", "", "answer requests with random tokens, as many and after the same times as in this trace `FILE`, which needs no token ids; times are as with --pace recorded, unless that is given")
	oneOf(flags, (*string)(&opts.match), "replay-match", player.MatchAuto, "how a request finds its record in --trace or --replay-steps: index (the request id is replay-N: record N in order of arrival), "+
		"prefix (the longest common beginning of the prompts), exact (the same prompt), request-id, or auto (index for request ids replay-N, else prefix if the trace has prompts or their hashes)", player.Matches()...)
	flags.IntVar(&opts.minDepth, "replay-min-depth", 0, "minimum number of prompt tokens that a request has in common with its record (--replay-match prefix: default one block)"+
		" or its row of --dataset (default the whole prompt)")
	flags.BoolVar(&opts.once, "replay-once", false, "use each record of --trace or --replay-steps for one request only")
	flags.StringVar(&opts.configHash, "expect-config-hash", "", "refuse a --trace, --replay-steps or --latency-trace whose config_hash is not this `HASH` (default any)")
	flags.StringVar(&opts.sha256, "trace-sha256", "", "refuse a --trace whose bytes do not have this sha256 `DIGEST`, 64 hexadecimal digits (default any)")
	flags.BoolVar(&opts.strict, "strict", false, "reply with an error when no record or row matches, instead of by --mode")
	flags.StringVar(&opts.dataset, "dataset", "", "answer requests with the completions of this `FILE`: JSON Lines, JSON, CSV, Parquet or SQLite")
	exclusive(flags, "trace", "replay-steps", "dataset")
	flags.StringVar(&opts.tokenizer, "tokenizer", "", "tokenizer.json of the model, or its folder: --dataset needs it, and valid structured output")
	oneOf(flags, &opts.mode, "mode", modeRandom, "reply when no recording matches: random (random tokens), text (English sentences; needs --tokenizer) or echo (the prompt)",
		modeRandom, modeText, modeEcho)
	flags.Uint64Var(&opts.seed, "seed", 0, "seed for random tokens, times and faults; without --deterministic, answers at a temperature above 0 also depend on the id of the request (default 0)")
	flags.BoolVar(&opts.deterministic, "deterministic", false, "give equal requests equal answers, whatever their ids are: what is drawn depends on --seed and the request alone; n answers are then equal, too")
	flags.StringVar(&opts.length, "output-length", "", "tokens of answers that are made up: a number, LOW-HIGH, normal:MEAN:DEVIATION, simulator (as llm-d-inference-sim), or a `FILE` of numbers, or of a trace (default one to five sentences)")
	flags.Uint32Var(&opts.vocab, "vocab-size", 0, "random token ids are below this number (default the size of the --tokenizer, else 32000)")
	above0(flags, "vocab-size")
	least0(flags, "replay-min-depth")
	needs(flags, "strict", "trace", "replay-steps", "dataset")
	needs(flags, "trace-sha256", "trace")
	needs(flags, "replay-once", "trace", "replay-steps")
	needs(flags, "expect-config-hash", "trace", "replay-steps", "latency-trace")
	grouped(flags, "Answers")
}

// check checks flags without reading a file.
func (opts *sourceOptions) check() error {
	switch {
	case opts.mode == modeText && opts.tokenizer == "":
		return errors.New("--mode text needs --tokenizer")
	case opts.minDepth > 0 && opts.dataset == "" && opts.match != player.MatchPrefix && opts.match != player.MatchAuto:
		return fmt.Errorf("--replay-min-depth has no effect with --replay-match %s: use --replay-match %s, or --dataset", opts.match, player.MatchPrefix)
	}
	return nil
}

// found is what knows how requests find their answers; nil where there is nothing to find.
type found interface {
	// Text is a line about it, empty without requests.
	Text() string
	// Result puts it into the JSON of play.
	Result(*playedJSON)
	// Rewind makes all answers unused.
	Rewind()
}

type recordedAnswers struct{ *player.Replay }

func (f recordedAnswers) Text() string {
	if s := f.Summary(); s.Requests > 0 {
		return s.String()
	}
	return ""
}

func (f recordedAnswers) Result(r *playedJSON) { s := f.Summary(); r.Trace = &s }

func (f datasetAnswers) Result(r *playedJSON) { s := f.Summary(); r.Dataset = &s }

type datasetAnswers struct{ *dataset.Source }

func (f datasetAnswers) Text() string {
	if s := f.Summary(); s.Requests > 0 {
		return s.String()
	}
	return ""
}

// source puts the source of answers into the options.
func (opts *sourceOptions) source(ctx context.Context, env *environment, opt *player.Options) (found, error) {
	opt.Seed, opt.Vocab = opts.seed, opts.vocab
	tok, err := opts.loadTokenizer(opt)
	if err != nil {
		return nil, err
	}
	made := player.Source(player.Random{Seed: opts.seed, Vocab: opt.Vocab})
	if opt.Vocab == 0 {
		made = &guessedVocabulary{Source: made, log: env.log}
	}
	switch opts.mode {
	case modeEcho:
		made = player.Echo{}
	case modeText:
		if made, err = player.NewSentences(tok, opts.seed, opts.sentences...); err != nil {
			return nil, fmt.Errorf("--mode text: %s: %w", opts.tokenizer, err)
		}
	}
	if opts.length != "" {
		draw, err := opts.readLength(env)
		if err != nil {
			return nil, err
		}
		made = player.Lengths{Source: made, Draw: draw, Seed: opts.seed, Context: cmp.Or(opts.context, opt.Limits.MaxModelLen, math.MaxInt32)}
	}
	if opts.mode == modeText {
		made = builtin.WithReasoning(made, tok, opts.reasoning)
	}
	structured := &player.Structured{Source: made, Seed: opts.seed, Log: env.log}
	if tok != nil {
		structured.Encoder, structured.Answered = tok, player.ToolAnswered(tok.Decode)
	}
	fallback := player.Source(structured)
	if opts.deterministic {
		fallback = player.Deterministic{Source: structured}
	}
	switch {
	case opts.recording != "" || opts.steps != "":
		return opts.replay(env, opt, tok, fallback)
	case opts.dataset != "":
		return opts.fromDataset(ctx, env, opt, tok, fallback)
	}
	opt.Source = fallback
	return nil, nil
}

// readLength reads --output-length: a distribution, or a file whose lengths are drawn.
func (opts *sourceOptions) readLength(env *environment) (player.Length, error) {
	if _, err := os.Stat(opts.length); err != nil {
		length, err := player.ParseLength(opts.length)
		if err != nil {
			return nil, fmt.Errorf("--output-length %w; or a FILE, which does not exist", err)
		}
		return length, nil
	}
	var lengths []int
	if strings.Contains(opts.length, ".jsonl") {
		in, err := inputAt(env, opts.length)
		if err != nil {
			return nil, err
		}
		t, err := in.readTrace("", trace.Options{Without: []string{"block_hashes"}})
		if err != nil {
			return nil, err
		}
		for i := range t.Records {
			lengths = append(lengths, max(t.Records[i].OutputTokens, 1))
		}
	} else {
		text, err := os.ReadFile(opts.length)
		if err != nil {
			return nil, err
		}
		for i, word := range strings.Fields(string(text)) {
			n, err := strconv.Atoi(word)
			if err != nil || n < 1 {
				return nil, fmt.Errorf("--output-length %s: number %d: %.50q is not a number of tokens, from 1", opts.length, i+1, word)
			}
			lengths = append(lengths, n)
		}
	}
	if len(lengths) == 0 {
		return nil, fmt.Errorf("--output-length %s: the file has no lengths", opts.length)
	}
	return player.AnyOf(lengths), nil
}

func (opts *sourceOptions) loadTokenizer(opt *player.Options) (*tokenizer.Tokenizer, error) {
	if opts.tokenizer == "" {
		return nil, nil
	}
	tok, err := opts.loaded, error(nil)
	if tok == nil {
		if tok, err = tokenizer.Load(opts.tokenizer); err != nil {
			return nil, err
		}
		opts.loaded = tok
	}
	if size := uint32(tok.VocabSize()); opt.Vocab == 0 {
		opt.Vocab = size
	} else if opt.Vocab > size {
		opt.Log.Warn("--vocab-size is larger than the vocabulary of --tokenizer: frontends show no text for the other ids, or fail",
			"vocab_size", opt.Vocab, "tokenizer", opts.tokenizer, "tokenizer_size", size)
	}
	return tok, nil
}

// guessedVocabulary is a source of tokens below the default size of a vocabulary. Nothing on the boundary has the number of
// tokens of the frontend's tokenizer, so it warns, once, if the first ids of requests are all small.
type guessedVocabulary struct {
	player.Source
	log  *slog.Logger
	done atomic.Bool
}

// defaultVocabulary is the size that [player.Random] takes by default.
const defaultVocabulary = 32000

// Script looks at the first request. The end-of-sequence token is among the largest ids of most models, and a prompt of a
// model with 32000 tokens or more rarely has only ids of the smaller half.
func (s *guessedVocabulary) Script(r *player.Request) (player.Script, error) {
	if s.done.CompareAndSwap(false, true) {
		largest := uint32(max(0, min(r.Sampling.EOSTokenID, defaultVocabulary)))
		for _, ids := range [][]uint32{r.PromptTokenIDs, r.Sampling.StopTokenIDs} {
			for _, id := range ids {
				largest = max(largest, id)
			}
		}
		if largest < defaultVocabulary/2 {
			s.log.Warn("random token ids are drawn below 32000, but the first request has smaller ids only. If the frontend's tokenizer "+
				"has fewer tokens, it shows no text for the larger ids, or fails: give --vocab-size, or --tokenizer with the model's folder",
				"request", r.ID, "largest_id", largest, "vocab_size", defaultVocabulary)
		}
	}
	return s.Source.Script(r)
}

// readTrace reads a trace without some of its keys. Unless configHash is empty, it must have been made with that configuration.
func (in input) readTrace(configHash string, opt trace.Options) (*trace.Trace, error) {
	r, err := in.trace(opt)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	t, err := r.ReadAll()
	if err != nil || configHash == "" {
		return t, err
	}
	switch recorded := trace.Or(t.Meta.ConfigHash, ""); recorded {
	case configHash:
		return t, nil
	case "":
		return nil, fmt.Errorf("%s: meta has no config_hash, and --expect-config-hash wants %s", in.name, configHash)
	default:
		return nil, fmt.Errorf("%s: config_hash mismatch: recorded with %s, --expect-config-hash wants %s", in.name, recorded, configHash)
	}
}

func (opts *sourceOptions) replay(env *environment, opt *player.Options, tok *tokenizer.Tokenizer, fallback player.Source) (found, error) {
	recording := cmp.Or(opts.recording, opts.steps)
	// Extra keys hold the request ids.
	read := trace.Options{KeepExtra: true, Without: []string{"itl_ctx", "tap_times"}}
	if opts.match == player.MatchIndex || opts.match == player.MatchRequestID {
		read.Without = append(read.Without, "block_hashes")
	}
	in, err := inputAt(env, recording)
	if err != nil {
		return nil, err
	}
	if err := in.hasSHA256(opts.sha256); err != nil {
		return nil, err
	}
	t, err := in.readTrace(opts.configHash, read)
	if err != nil {
		return nil, err
	}
	if opts.steps != "" {
		if err := drawTokens(t, opts.seed, cmp.Or(opt.Vocab, defaultVocabulary)); err != nil {
			return nil, err
		}
	}
	for _, warning := range t.Warnings {
		env.log.Warn(warning)
	}
	hashed := slices.ContainsFunc(t.Records, func(r trace.Record) bool { return len(r.BlockHashes) > 0 || r.PromptTokenIDs != nil })
	var replay *player.Replay
	var warned sync.Once
	replay, err = player.NewReplay(t, player.ReplayOptions{
		Match: opts.match, Strict: opts.strict, Fallback: fallback, Once: opts.once, MinDepth: opts.minDepth, BlockSize: opt.KVCache.BlockSize,
		OnUnmatched: func(r *player.Request, reason error) {
			warned.Do(func() {
				answer := opts.mode + " tokens"
				if opts.strict {
					answer = "an error, because of --strict"
				}
				env.log.Warn("the first request that no record answers; others like it are counted in the summary at the end",
					"request", r.ID, "reason", reason, "gets", answer, "try", opts.advice(hashed, replay.Summary().Exhausted > 0))
			})
		},
	})
	if err != nil {
		return nil, err
	}
	opt.Trace, opt.Source = &trace.Trace{Name: t.Name, Meta: t.Meta}, replay // which keeps what it needs of the records
	if opts.steps != "" && opt.Vocab == 0 {
		opt.Source = &guessedVocabulary{Source: replay, log: env.log}
	}
	if largest := largestID(t); tok != nil && int(largest) >= tok.VocabSize() {
		env.log.Warn("the trace has token ids that --tokenizer does not have: frontends with this tokenizer show no text for them, or fail",
			"recording", recording, "largest_id", largest, "tokenizer", opts.tokenizer, "tokenizer_size", tok.VocabSize())
	}
	return recordedAnswers{replay}, nil
}

// Bounds of [drawTokens].
const (
	maxDrawn   = 1 << 24 // tokens of an answer
	drawnStart = 1 << 12 // places at which answers begin
)

// drawTokens gives every record random tokens below vocab in place of its own, as many as it has, and equal gaps where only
// the mean of the gaps was recorded. All answers are parts of one row of random tokens, so that a long trace needs no more memory.
func drawTokens(t *trace.Trace, seed uint64, vocab uint32) error {
	longest := 0
	for i := range t.Records {
		if longest = max(longest, t.Records[i].OutputTokens); longest > maxDrawn {
			return fmt.Errorf("%s:%d: output_tokens is %d: want at most %d", t.Name, t.Records[i].Line, longest, maxDrawn)
		}
	}
	rng := rand.New(rand.NewPCG(seed, 0))
	row := make([]uint32, longest+drawnStart)
	for i := range row {
		row[i] = rng.Uint32N(vocab)
	}
	for i := range t.Records {
		r := &t.Records[i]
		begin := i % drawnStart
		r.OutputTokenIDs = row[begin : begin+r.OutputTokens : begin+r.OutputTokens]
		if r.ITLMs == nil && r.ITLSummary != nil && r.OutputTokens > 1 {
			r.ITLMs = slices.Repeat([]float64{r.ITLSummary.MeanMs}, r.OutputTokens-1)
		}
	}
	return nil
}

// advice is what could be done so that a record answers. hashed is set if records can be found by their prompts, used if records would
// answer, had they not answered before.
func (opts *sourceOptions) advice(hashed, used bool) string {
	switch match := opts.match; {
	case used:
		return "leave out --replay-once, or send SIGHUP to play, which makes all records unused"
	case !hashed && match != player.MatchIndex && match != player.MatchRequestID:
		return "send the request ids replay-0, replay-1, and so on: this trace has no hashes of prompts to find its records by"
	case match == player.MatchIndex || match == player.MatchRequestID:
		return "--replay-match prefix, which finds records by their prompts, if the trace has block_hashes"
	}
	return "send the recorded prompts, by the model, tokenizer and chat template of the recording"
}

// largestID is the largest token id in the answers of a trace.
func largestID(t *trace.Trace) (largest uint32) {
	for i := range t.Records {
		for _, id := range t.Records[i].OutputTokenIDs {
			largest = max(largest, id)
		}
	}
	return largest
}

func (opts *sourceOptions) fromDataset(ctx context.Context, env *environment, opt *player.Options, tok *tokenizer.Tokenizer, fallback player.Source) (found, error) {
	set, err := dataset.Load(opts.dataset, tok, func(path string) (dataset.Table, error) {
		reader, err := process.FindHelper(ctx, dataset.Program, "datasets in Parquet and SQLite need", buildVersion())
		if err != nil {
			return dataset.Table{}, err
		}
		return dataset.ReadBy(ctx, reader)(path)
	})
	if err != nil {
		return nil, err
	}
	if set.Skipped > 0 {
		env.log.Warn("rows without a prompt or a completion are left out", "dataset", opts.dataset, "rows", set.Skipped, "first", set.FirstSkipped)
	}
	source, err := set.Source(dataset.Options{Strict: opts.strict, Fallback: fallback, MinDepth: opts.minDepth, Random: opts.randomRow, Seed: opts.seed, Calls: func(calls []byte) (string, error) {
		return answers.WriteCalls(opts.toolParser, calls)
	}})
	if err != nil {
		return nil, err
	}
	opt.Source = source
	if opts.deterministic {
		opt.Source = player.Deterministic{Source: source}
	}
	return datasetAnswers{source}, nil
}

// timingOptions are the flags of the times of the player's steps.
type timingOptions struct {
	pace   player.Pace
	traces []string
	result resultsOptions
	knobs  latency.Knobs
	scale  float64
	auto   player.Pace   // that paceAuto is without a model
	now    latency.Model // in the place of knobs; nil for none
}

const paceAuto player.Pace = "auto"

func (opts *timingOptions) add(flags *pflag.FlagSet) {
	k := &opts.knobs
	oneOf(flags, (*string)(&opts.pace), "pace", paceAuto, "when outputs are sent: instant, recorded (after the same time as in --trace), modelled "+
		"(by --latency-trace, --latency-results or the durations below), or auto (modelled if one of these is given, else recorded with --replay-steps and instant without)", paceAuto, player.PaceInstant, player.PaceRecorded, player.PaceModelled)
	flags.StringArrayVar(&opts.traces, "latency-trace", nil, "learn step times from this trace `FILE`; set --max-num-batched-tokens as in its engine; may be repeated")
	opts.result.add(flags)
	exclusive(flags, "latency-trace", "latency-results")
	needs(flags, "columns", "latency-results")
	needs(flags, "engine-args", "latency-results")
	durations := []struct {
		value *time.Duration
		name  string
		usage string
	}{
		{&k.TimeToFirstToken, "time-to-first-token", "mean time to compute a prompt, such as 150ms"},
		{&k.TimeToFirstTokenStdDev, "time-to-first-token-std-dev", "standard deviation of --time-to-first-token"},
		{&k.InterTokenLatency, "inter-token-latency", "mean time of a step that decodes, such as 15ms"},
		{&k.InterTokenLatencyStdDev, "inter-token-latency-std-dev", "standard deviation of --inter-token-latency"},
		{&k.PrefillOverhead, "prefill-overhead", "fixed time to compute a prompt, instead of --time-to-first-token"},
		{&k.PrefillPerToken, "prefill-time-per-token", "time to compute each prompt token that is not in the prefix cache"},
		{&k.PrefillStdDev, "prefill-time-std-dev", "standard deviation of the sum of --prefill-overhead and --prefill-time-per-token"},
		{&k.TransferLatency, "kv-cache-transfer-latency", "mean time to receive the KV cache of a prompt from another engine"},
		{&k.TransferLatencyStdDev, "kv-cache-transfer-latency-std-dev", "standard deviation of --kv-cache-transfer-latency"},
		{&k.TransferPerToken, "kv-cache-transfer-time-per-token", "time to receive the KV cache of each prompt token, instead of --kv-cache-transfer-latency"},
		{&k.TransferStdDev, "kv-cache-transfer-time-std-dev", "standard deviation of --kv-cache-transfer-time-per-token"},
	}
	for _, d := range durations {
		flags.DurationVar(d.value, d.name, 0, d.usage+" (default 0)")
	}
	flags.Float64Var(&opts.scale, "time-scale", 1, "divide all recorded and modelled times by this: with 100, an hour takes 36 seconds")
	flags.Float64Var(&k.LoadFactor, "time-factor-under-load", 1, "factor for these durations when --max-num-seqs requests run; it is 1 with one request and grows evenly between")
	grouped(flags, "Timing")
}

// model puts pace and model into the options. Each engine of a group has a model of its own.
func (opts *timingOptions) model(env *environment, opt *player.Options, configHash string) (func() (latency.Model, error), error) {
	if !(opts.scale > 0) || math.IsInf(opts.scale, 0) {
		return nil, fmt.Errorf("--time-scale %v: want a number above 0", opts.scale)
	}
	opt.Timing.Scale = opts.scale
	if err := opts.knobs.Validate(); err != nil {
		return nil, fmt.Errorf("--%w", err)
	}
	pace := opts.pace
	learned := len(opts.traces)+len(opts.result.paths) > 0
	modelled := learned || opts.knobs != latency.Knobs{LoadFactor: opts.knobs.LoadFactor}
	switch {
	case pace == paceAuto && modelled:
		pace = player.PaceModelled
	case pace == paceAuto:
		pace = opts.auto
	case pace == player.PaceModelled && !modelled:
		return nil, errors.New("--pace modelled needs a model: give --latency-trace, --latency-results, or durations such as --time-to-first-token 150ms")
	case pace != player.PaceModelled && modelled:
		return nil, fmt.Errorf("--pace %s: --latency-trace, and durations such as --time-to-first-token, need --pace modelled", pace)
	case pace == player.PaceRecorded && opt.Trace == nil:
		return nil, errors.New("--pace recorded needs --trace or --replay-steps")
	}
	if opts.now != nil && !learned {
		pace = player.PaceAlone
	}
	opt.Timing.Pace = pace
	if opts.now != nil && !learned {
		return func() (latency.Model, error) { return opts.now, nil }, nil
	}
	if pace != player.PaceModelled {
		return func() (latency.Model, error) { return nil, nil }, nil
	}
	if len(opts.result.paths) > 0 {
		return opts.fromResults(env, opt)
	}
	if len(opts.traces) == 0 {
		return func() (latency.Model, error) { knobs := opts.knobs; return &knobs, nil }, nil
	}
	traces := make([]*trace.Trace, len(opts.traces))
	for i, path := range opts.traces {
		var err error
		in, err := inputAt(env, path)
		if err != nil {
			return nil, err
		}
		if traces[i], err = in.readTrace(configHash, trace.Options{Without: []string{"block_hashes"}}); err != nil {
			return nil, err
		}
		for _, warning := range traces[i].Warnings {
			opt.Log.Warn(warning)
		}
	}
	fit, err := latency.NewFit(latency.FitOptions{Budget: opt.Limits.MaxNumBatchedTokens, Knobs: opts.knobs}, traces...)
	if err != nil {
		return nil, err
	}
	return func() (latency.Model, error) { return fit.Again(), nil }, nil
}

// fromResults learns from results of requests. What --engine-args does not say of the engine that they are of is as in the player.
func (opts *timingOptions) fromResults(env *environment, opt *player.Options) (func() (latency.Model, error), error) {
	transfer := opts.knobs
	if err := latency.TransferOnly(&transfer); err != nil {
		return nil, err
	}
	var engine inspect.Override
	if err := opts.result.config(&engine); err != nil {
		return nil, err
	}
	engine.MaxNumSeqs = cmp.Or(engine.MaxNumSeqs, opt.Limits.MaxNumSeqs)
	engine.MaxNumBatchedTokens = cmp.Or(engine.MaxNumBatchedTokens, opt.Limits.MaxNumBatchedTokens)
	engine.BlockSize = cmp.Or(engine.BlockSize, opt.KVCache.BlockSize)
	var results []*trace.Trace
	for _, path := range opts.result.paths {
		t, err := opts.result.read(env, path)
		if err != nil {
			return nil, err
		}
		results = append(results, t)
	}
	learned, err := inspect.LearnResults(results, 0, engine, 1)
	if err != nil {
		return nil, err
	}
	for _, note := range learned.Notes {
		opt.Log.Warn(note)
	}
	return func() (latency.Model, error) { return learned.Model(&transfer), nil }, nil
}
