package protocol

import (
	"errors"
	"fmt"

	"github.com/vllm-vcr/conformance/internal/wire/pack"
)

// Pooling holds the members of PoolingParams that decide what an engine core must
// answer (vllm/pooling_params.py).
type Pooling struct {
	Task       string // "embed", "classify", "token_embed", …
	Dimensions int    // of an embedding; 0 leaves them to the model
	// Activate reports whether embeddings are normalised and classes are probabilities,
	// which they are unless the request says otherwise.
	Activate bool
	// ChunkSize is how many tokens one row of token_embed is of: 0 or 1 one
	// (0.33).
	ChunkSize int
	// LateInteraction is "cache_query" or "score_doc" for the two sides of a score
	// that is computed in the engine; else empty. Query names what they share.
	LateInteraction, Query string
	// SkipReading says that the prompt is not looked up in the prefix cache, as for
	// what gets each token.
	SkipReading bool
}

// DecodePooling reads the pooling_params of a request. Values of other types than those declared are as if they were not there:
// [Codec.Undecodable] finds them.
func (c *Codec) DecodePooling(raw []byte) (Pooling, error) {
	if pack.Validate(raw) != nil {
		return Pooling{}, errors.New("PoolingParams: it is not well formed")
	}
	v := c.read(new(View), "PoolingParams", c.rules().structs["PoolingParams"], raw)
	if v.Kind() != pack.Array {
		return Pooling{}, fmt.Errorf("PoolingParams: an array was expected, found %s", v.Kind())
	}
	p := Pooling{
		Task: v.Field("task").Text(), Activate: true,
		LateInteraction: v.Field("late_interaction_params").At(0).Text(), Query: v.Field("late_interaction_params").At(1).Text(),
	}
	p.Dimensions, _ = v.Field("dimensions").small()
	p.ChunkSize, _ = v.Field("late_chunking_params").At(0).small()
	p.SkipReading, _ = v.Field("skip_reading_prefix_cache").Bool()
	if activate := v.Field("use_activation"); activate.Given() {
		p.Activate, _ = activate.Bool()
	}
	return p, nil
}

// AppendPooling writes the pooling_params of a request for a task. dimensions is that of an embedding; 0 leaves it to the model.
func (c *Codec) AppendPooling(b []byte, task string, dimensions int) ([]byte, error) {
	fields := c.profile.Structs["PoolingParams"].Fields
	b = pack.AppendArrayHeader(b, len(fields))
	for _, f := range fields {
		switch {
		case f.Name == "task":
			b = pack.AppendString(b, task)
		case f.Name == "dimensions" && dimensions > 0:
			b = pack.AppendInt(b, int64(dimensions))
		default:
			value, err := c.defaultOf("PoolingParams", f)
			if err != nil {
				return nil, err
			}
			b = append(b, value...)
		}
	}
	return b, nil
}

// PromptScores says which ids are to be scored as predictions of the prompt's
// tokens: row i those of token PromptScoreStart+i+1 (vllm/sampling_params.py
// prompt_logprob_token_ids). 0.31 sends one row for all places, later lines a table.
type PromptScores struct {
	Rows  int     // 0: IDs is the row of every place
	Width int     // ids a row
	IDs   []int64 // Rows*Width, or Width; -1 pads a row
}

// DecodePromptScores reads the value that a request has. aux are the auxiliary frames
// of its message, which hold the ids when they are many.
func DecodePromptScores(raw []byte, aux [][]byte) (*PromptScores, error) {
	cur := pack.NewCursor(raw)
	p, err := decodePromptScores(&cur, aux)
	if err != nil {
		return nil, fmt.Errorf("prompt_logprob_token_ids: %w", err)
	}
	return p, nil
}

// decodePromptScores reads a list of ids, a list of lists, or an array: [dtype,
// [rows, ids], data].
func decodePromptScores(cur *pack.Cursor, aux [][]byte) (*PromptScores, error) {
	start := *cur
	n, err := cur.ArrayLen()
	if err != nil || n == 0 {
		return nil, err
	}
	p := new(PromptScores)
	switch cur.Kind() {
	case pack.String:
		return p, p.decodeArray(&start, aux)
	case pack.Array:
		p.Rows = n
		for range n {
			if err := p.decodeRow(cur); err != nil {
				return nil, err
			}
		}
		return p, nil
	}
	p.Width = n
	for range n {
		id, err := cur.Int()
		if err != nil {
			return nil, err
		}
		p.IDs = append(p.IDs, id)
	}
	return p, nil
}

// decodeRow reads a row of a list of lists, all of which are padded to one length.
func (p *PromptScores) decodeRow(cur *pack.Cursor) error {
	n, err := cur.ArrayLen()
	if err != nil {
		return err
	}
	if p.IDs != nil && n != p.Width {
		return fmt.Errorf("a row of %d ids after one of %d", n, p.Width)
	}
	for p.Width = n; n > 0; n-- {
		id, err := cur.Int()
		if err != nil {
			return err
		}
		p.IDs = append(p.IDs, id)
	}
	return nil
}

func (p *PromptScores) decodeArray(cur *pack.Cursor, aux [][]byte) error {
	t, err := ReadTensor(cur, aux)
	switch {
	case err != nil:
		return err
	case len(t.Shape) != 2:
		return fmt.Errorf("an array of %d dimensions, want 2", len(t.Shape))
	case t.IsFloat():
		return fmt.Errorf("ids of type %q", t.Dtype)
	}
	p.Rows, p.Width, p.IDs = t.Shape[0], t.Shape[1], t.Integers()
	return nil
}
