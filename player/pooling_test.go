package player

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// pooled is what a test asks to be pooled.
type pooled struct {
	task       string
	raw        bool // no activation
	dimensions int
	chunk      int    // tokens a row
	late       string // mode of late interaction
	query      string
	skip       bool // the prefix cache is not read
}

// poolingParams are PoolingParams as the frontend of 0.33 writes them.
func poolingParams(p pooled) []byte {
	optional := func(b []byte, n int) []byte {
		if n == 0 {
			return pack.AppendNil(b)
		}
		return pack.AppendInt(b, int64(n))
	}
	b := pack.AppendArrayHeader(nil, 11)
	if b = pack.AppendNil(b); p.raw {
		b = pack.AppendBool(b[:len(b)-1], false)
	}
	b = optional(b, p.dimensions)
	b = pack.AppendNil(pack.AppendNil(b)) // step_tag_id, returned_token_ids
	b = pack.AppendBool(pack.AppendString(b, p.task), false)
	if b = pack.AppendNil(b); p.skip {
		b = pack.AppendBool(b[:len(b)-1], true)
	}
	if b = pack.AppendNil(b); p.late != "" {
		b = pack.AppendArrayHeader(b[:len(b)-1], 3)
		b = pack.AppendNil(pack.AppendString(pack.AppendString(b, p.late), p.query))
	}
	b = pack.AppendInt(pack.AppendNil(b), 2) // extra_kwargs, output_kind
	if b = pack.AppendNil(b); p.chunk > 0 {
		b = pack.AppendInt(pack.AppendArrayHeader(b[:len(b)-1], 1), int64(p.chunk))
	}
	return b
}

func pool(id string, prompt []uint32, p pooled) *protocol.Request {
	return &protocol.Request{ID: id, PromptTokenIDs: prompt, DataParallelRank: -1, Pooling: poolingParams(p)}
}

// poolingOptions are those of a model that does every task.
func poolingOptions() Options {
	return Options{VLLMVersion: "v0.33.0", Pooling: PoolingOptions{Tasks: poolingTasks, Size: 6, Labels: 3}}
}

// floats reads a tensor of float32.
func floats(t *testing.T, raw []byte, aux [][]byte) (shape []int, values []float32) {
	t.Helper()
	if raw == nil {
		t.Fatal("there is no tensor")
	}
	cur := pack.NewCursor(raw)
	dtype, shape, data := readTensor(t, &cur, aux)
	if dtype != "float32" {
		t.Fatalf("a tensor of %s", dtype)
	}
	for i := 0; i < len(data); i += 4 {
		values = append(values, math.Float32frombits(binary.LittleEndian.Uint32(data[i:])))
	}
	return shape, values
}

// poolOnce asks a new engine and returns the one output of the request.
func poolOnce(t *testing.T, r *protocol.Request, change ...func(*Options)) (shape []int, values []float32) {
	t.Helper()
	opt := poolingOptions()
	for _, c := range change {
		c(&opt)
	}
	rig := newRig(t, opt, 1)
	rig.submit(r)
	rig.runAll()
	got := rig.answer(r.ID)
	if len(got.chunks) != 1 || len(got.tokens()) != 0 || got.finish != protocol.FinishStop || got.stop != "" {
		t.Fatalf("got %d outputs, tokens %v, finish %v %q %s, want one, none, stop",
			len(got.chunks), got.tokens(), got.finish, got.stop, got.err)
	}
	e := rig.envelopes[0]
	return floats(t, e.Outputs.Outputs[0].Pooling, e.aux)
}

func length(values []float32) float64 {
	sum := 0.0
	for _, v := range values {
		sum += float64(v) * float64(v)
	}
	return math.Sqrt(sum)
}

func TestPoolingShapes(t *testing.T) {
	prompt := count(3, 5)
	for _, tt := range []struct {
		name  string
		ask   pooled
		shape []int
		rows  func(row []float32) error // of each row, nil: anything
	}{
		{"embedding", pooled{task: "embed"}, []int{6}, isUnit},
		{"of fewer numbers", pooled{task: "embed", dimensions: 2}, []int{2}, isUnit},
		{"of too many numbers", pooled{task: "embed", dimensions: 99}, []int{6}, isUnit},
		{"as it is", pooled{task: "embed", raw: true}, []int{6}, isNotUnit},
		{"classes", pooled{task: "classify"}, []int{3}, isDistribution},
		{"logits", pooled{task: "classify", raw: true}, []int{3}, isNotDistribution},
		{"embedding of each token", pooled{task: "token_embed"}, []int{5, 6}, isUnit},
		{"of each two tokens", pooled{task: "token_embed", chunk: 2}, []int{3, 6}, isUnit},
		{"classes of each token", pooled{task: "token_classify", chunk: 2}, []int{5, 3}, isDistribution},
		{"embedding and a class of each token", pooled{task: "embed&token_classify"}, []int{11}, nil},
		{"of a plugin", pooled{task: "plugin"}, []int{5, 6}, isUnit},
		{"a query that is kept", pooled{task: "token_embed", late: "cache_query", query: "q"}, []int{}, nil},
		{"a document's score", pooled{task: "token_embed", late: "score_doc", query: "q"}, []int{}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			shape, values := poolOnce(t, pool("a", prompt, tt.ask))
			if !slices.Equal(shape, tt.shape) {
				t.Fatalf("shape %v, want %v", shape, tt.shape)
			}
			size := 1
			if len(shape) > 0 {
				size = shape[len(shape)-1]
			}
			for row := range slices.Chunk(values, size) {
				if tt.rows == nil {
					break
				}
				if err := tt.rows(row); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

func isUnit(row []float32) error {
	if n := length(row); math.Abs(n-1) > 1e-5 {
		return fmt.Errorf("%v has length %v, want 1", row, n)
	}
	return nil
}

func isNotUnit(row []float32) error {
	if isUnit(row) == nil {
		return fmt.Errorf("%v is normalised", row)
	}
	return nil
}

func isDistribution(row []float32) error {
	sum := 0.0
	for _, v := range row {
		if sum += float64(v); v <= 0 || v >= 1 {
			return fmt.Errorf("%v are no probabilities", row)
		}
	}
	if math.Abs(sum-1) > 1e-5 {
		return fmt.Errorf("%v add up to %v, want 1", row, sum)
	}
	return nil
}

func isNotDistribution(row []float32) error {
	if isDistribution(row) == nil {
		return fmt.Errorf("%v are probabilities", row)
	}
	return nil
}

// The same prompt has the same numbers, whatever else differs; another one has others.
func TestPoolingIsSeededByThePrompt(t *testing.T) {
	value := func(r *protocol.Request, change ...func(*Options)) []float32 {
		_, values := poolOnce(t, r, change...)
		return values
	}
	embed := pooled{task: "embed"}
	first := value(pool("a", count(3, 40), embed))
	if diff := cmp.Diff(first, value(pool("b", count(3, 40), embed))); diff != "" {
		t.Errorf("another request of the same prompt: %s", diff)
	}
	adapted := pool("a", count(3, 40), embed)
	adapted.LoRA = &protocol.LoRA{Name: "x", ID: 1}
	for name, other := range map[string][]float32{
		"prompt":  value(pool("a", count(4, 40), embed)),
		"seed":    value(pool("a", count(3, 40), embed), func(o *Options) { o.Seed = 9 }),
		"adapter": value(adapted),
	} {
		if slices.Equal(first, other) {
			t.Errorf("another %s has the same numbers", name)
		}
	}
	query := value(pool("a", count(3, 40), pooled{task: "token_embed", late: "score_doc", query: "q"}))
	if slices.Equal(query, value(pool("a", count(3, 40), pooled{task: "token_embed", late: "score_doc", query: "r"}))) {
		t.Error("another query has the same score")
	}
}

// One class is a score by itself: a sigmoid, as of models that rank.
func TestOneClassIsAScore(t *testing.T) {
	one := func(o *Options) { o.Pooling.Labels = 0 }
	_, score := poolOnce(t, pool("a", count(3, 5), pooled{task: "classify"}), one)
	_, logit := poolOnce(t, pool("a", count(3, 5), pooled{task: "classify", raw: true}), one)
	if len(score) != 1 || math.Abs(float64(score[0])-1/(1+math.Exp(-float64(logit[0])))) > 1e-6 {
		t.Errorf("a score of %v for a logit of %v", score, logit)
	}
}

// A model that pools may be asked for as many tokens as it has room for, in one step
// or in several.
func TestPoolingOfTheWholeContext(t *testing.T) {
	for _, budget := range []int{4096, 100, 1} {
		t.Run(fmt.Sprint(budget), func(t *testing.T) {
			full := func(o *Options) { o.Limits.MaxModelLen, o.Limits.MaxNumBatchedTokens = 300, budget }
			shape, _ := poolOnce(t, pool("a", count(3, 300), pooled{task: "token_classify"}), full)
			if !slices.Equal(shape, []int{300, 3}) {
				t.Errorf("shape %v", shape)
			}
		})
	}
}

func TestPoolingOfALongPromptIsNotTooLarge(t *testing.T) {
	long := func(o *Options) { o.Pooling.Size, o.KVCache.NumGPUBlocks = 1024, 16384 }
	for _, task := range []string{"embed", "classify", "embed&token_classify"} {
		if _, values := poolOnce(t, pool("a", count(0, 100_000), pooled{task: task}), long); len(values) < 3 {
			t.Errorf("%s: %d numbers", task, len(values))
		}
	}
}

func TestPoolingThatIsRefused(t *testing.T) {
	const unsupported = `bad_request: unsupported task "classify": this engine's are `
	for _, tt := range []struct {
		name   string
		change func(*Options)
		ask    *protocol.Request
		want   string
	}{
		{
			"another task", func(o *Options) { o.Pooling.Tasks = []string{"embed"} },
			pool("a", count(0, 3), pooled{task: "classify"}), unsupported + "embed",
		},
		{
			"a model that generates", func(o *Options) { o.Pooling.Tasks = nil },
			pool("a", count(0, 3), pooled{task: "classify"}), unsupported + "generate",
		},
		{
			"too large", func(o *Options) { o.Pooling.Size, o.KVCache.NumGPUBlocks = 1<<20, 64 },
			pool("a", count(0, 17), pooled{task: "token_embed"}), "bad_request: the answer would have 17825792 numbers: at most",
		},
		{
			"too long", func(o *Options) { o.Limits.MaxModelLen = 10 },
			pool("a", count(0, 11), pooled{task: "embed"}), "validation_error: the prompt has 11 tokens, and max_model_len is 10",
		},
		{"nothing asked for", nil, &protocol.Request{ID: "a", PromptTokenIDs: count(0, 3)}, "bad_request: neither sampling nor"},
		{
			"no parameters", nil, &protocol.Request{ID: "a", PromptTokenIDs: count(0, 3), Pooling: pack.AppendInt(nil, 3)},
			"bad_request: PoolingParams: msgpack",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			opt := poolingOptions()
			if tt.change != nil {
				tt.change(&opt)
			}
			r := ran(t, opt, tt.ask)
			if got := r.answer("a"); got.finish != protocol.FinishError || !strings.HasPrefix(got.err, tt.want) {
				t.Errorf("ended by %v: %s, want %s", got.finish, got.err, tt.want)
			}
		})
	}
	if _, err := New(Options{Pooling: PoolingOptions{Tasks: []string{"embed", "score"}}}); err == nil || !strings.Contains(err.Error(), `"score"`) {
		t.Errorf("a task that is none: %v", err)
	}
}

// What is told of each token needs each token computed: its frontend says so.
func TestPoolingReadsThePrefixCacheUnlessItSaysOtherwise(t *testing.T) {
	for _, skip := range []bool{false, true} {
		r := newRig(t, poolingOptions(), 1)
		prompt := count(0, 40)
		for _, id := range []string{"first", "second"} {
			r.submit(pool(id, prompt, pooled{task: "token_embed", skip: skip}))
			r.runAll()
		}
		stats := r.envelopes[1].Outputs.Outputs[0].Prefill
		got := decoded(t, stats).(map[string]any)["num_cached_tokens"]
		if want := map[bool]int64{false: 32, true: 0}[skip]; got != want {
			t.Errorf("skip %v: %v tokens are cached, want %d", skip, got, want)
		}
	}
}

func TestSupportedTasks(t *testing.T) {
	for _, tasks := range [][]string{{"embed"}, {"token_classify", "classify"}} {
		t.Run(tasks[0], func(t *testing.T) {
			s := connect(t, Options{Pooling: PoolingOptions{Tasks: tasks}}, 1)
			var want []any
			for _, task := range tasks {
				want = append(want, task)
			}
			if diff := cmp.Diff(want, decoded(t, s.reply(0, "get_supported_tasks").Result)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
