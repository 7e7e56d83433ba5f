package player

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// poolingTasks are what a pooling model may support (vllm/tasks.py
// PoolingTask), and taskGenerate, with which the player generates too.
var poolingTasks = []string{"embed", "classify", "token_embed", "token_classify", "plugin", "embed&token_classify", taskGenerate}

const taskGenerate = "generate"

// Sizes of what is pooled, where the options name none.
const (
	defaultPoolingSize   = 1024
	defaultPoolingLabels = 1
)

// tasks are those that the player reports. A real engine generates or pools.
func (o *Options) tasks() []string {
	if len(o.Pooling.Tasks) > 0 {
		return o.Pooling.Tasks
	}
	return []string{taskGenerate}
}

// pooling is a pooling request.
type pooling struct {
	protocol.Pooling
	seed         uint64
	size, labels int
}

// newPooling reads a request without sampling parameters. The error is why it cannot
// be answered.
func newPooling(codec *protocol.Codec, r *protocol.Request, opt *Options) (*pooling, error) {
	if r.Pooling == nil {
		return nil, fmt.Errorf("neither sampling nor pooling parameters")
	}
	params, err := codec.DecodePooling(r.Pooling)
	if err != nil {
		return nil, err
	}
	if !slices.Contains(opt.Pooling.Tasks, params.Task) {
		return nil, fmt.Errorf("unsupported task %q: this engine's are %s", params.Task, strings.Join(opt.tasks(), ", "))
	}
	p := &pooling{Pooling: params, seed: opt.Seed, size: opt.Pooling.Size, labels: opt.Pooling.Labels}
	if p.size <= 0 {
		p.size = defaultPoolingSize
	}
	if p.labels <= 0 {
		p.labels = defaultPoolingLabels
	}
	if r.LoRA != nil {
		p.seed = hashText(p.seed, r.LoRA.Name)
	}
	if n := p.cells(len(r.PromptTokenIDs)); n > maxCells {
		return nil, fmt.Errorf("the answer would have %d numbers: at most %d are allowed", n, maxCells)
	}
	return p, nil
}

// cells is how many numbers the answer has at most.
func (p *pooling) cells(prompt int) int {
	switch p.Task {
	case "embed", "classify":
		return p.size + p.labels
	case "embed&token_classify":
		return p.size + prompt
	}
	return p.rows(prompt) * max(p.size, p.labels)
}

// rows is how many rows a task for each token has.
func (p *pooling) rows(prompt int) int {
	if p.ChunkSize > 1 && p.Task == "token_embed" {
		return (prompt + p.ChunkSize - 1) / p.ChunkSize
	}
	return prompt
}

// tensor is the answer. The same prompt gets the same numbers.
func (p *pooling) tensor(prompt []uint32) *protocol.Tensor {
	all := hashTokens(p.seed, prompt)
	switch {
	case p.LateInteraction == "cache_query":
		return &protocol.Tensor{Values: []float32{0}}
	case p.LateInteraction != "":
		return &protocol.Tensor{Values: []float32{unit(hashText(all, p.Query), 0)}}
	}
	switch p.Task {
	case "embed":
		return vectorOf(p.embedding(all))
	case "classify":
		return vectorOf(p.classes(all))
	case "embed&token_classify":
		values, seed := p.embedding(all), p.seed
		for i := range prompt {
			seed = hashTokens(seed, prompt[i:i+1])
			values = append(values, p.classes(seed)[0])
		}
		return vectorOf(values)
	case "token_classify":
		return p.perToken(prompt, p.labels, p.classes)
	}
	return p.perToken(prompt, p.width(), p.embedding)
}

func vectorOf(values []float32) *protocol.Tensor {
	return &protocol.Tensor{Shape: []int{len(values)}, Values: values}
}

// width is the size of an embedding; a request may want fewer numbers
// (vllm/model_executor/layers/pooler/seqwise/heads.py).
func (p *pooling) width() int {
	if p.Dimensions > 0 {
		return min(p.Dimensions, p.size)
	}
	return p.size
}

// perToken has a row for each token, or for each chunk of them. A row depends on the
// tokens up to it.
func (p *pooling) perToken(prompt []uint32, width int, row func(seed uint64) []float32) *protocol.Tensor {
	rows := p.rows(len(prompt))
	t := &protocol.Tensor{Shape: []int{rows, width}, Values: make([]float32, 0, rows*width)}
	size := max(p.ChunkSize, 1)
	if p.Task != "token_embed" {
		size = 1
	}
	seed := p.seed
	for chunk := range slices.Chunk(prompt, size) {
		seed = hashTokens(seed, chunk)
		t.Values = append(t.Values, row(seed)...)
	}
	return t
}

// embedding is a vector of length 1, or of any length if the request wants it raw.
func (p *pooling) embedding(seed uint64) []float32 {
	values := make([]float32, p.width())
	sum := 0.0
	for i := range values {
		values[i] = 2*unit(seed, i) - 1
		sum += float64(values[i]) * float64(values[i])
	}
	if !p.Activate || sum == 0 {
		return values
	}
	for i := range values {
		values[i] = float32(float64(values[i]) / math.Sqrt(sum))
	}
	return values
}

// classes are probabilities, of which several sum to 1, or logits where the request
// says so.
func (p *pooling) classes(seed uint64) []float32 {
	values := make([]float32, p.labels)
	sum := 0.0
	for i := range values {
		logit := float64(8*unit(seed, i) - 4)
		values[i] = float32(logit)
		sum += math.Exp(logit)
	}
	if !p.Activate {
		return values
	}
	for i, logit := range values {
		if values[i] = float32(math.Exp(float64(logit)) / sum); p.labels == 1 {
			values[i] = float32(1 / (1 + math.Exp(-float64(logit))))
		}
	}
	return values
}

// unit is a number from 0 to 1 that a seed has at a place.
func unit(seed uint64, i int) float32 {
	return float32(scramble(seed+uint64(i+1)*0x9e3779b97f4a7c15)>>40) / (1 << 24)
}

// scramble is the finalizer of splitmix64.
func scramble(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

func hashTokens(seed uint64, tokens []uint32) uint64 {
	for _, token := range tokens {
		seed = scramble(seed + uint64(token) + 0x9e3779b97f4a7c15)
	}
	return seed
}

func hashText(seed uint64, text string) uint64 {
	for i := range len(text) {
		seed = scramble(seed + uint64(text[i]) + 0x9e3779b97f4a7c15)
	}
	return seed
}
