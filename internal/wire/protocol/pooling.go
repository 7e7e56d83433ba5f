package protocol

import (
	"fmt"
	"math"

	"github.com/vllm-vcr/conformance/internal/wire/pack"
)

// Pooling holds the members of PoolingParams that decide what an engine core must
// answer (vllm/pooling_params.py).
type Pooling struct {
	Task       string // "embed", "classify", "token_embed", …
	Dimensions int    // of an embedding; 0 leaves them to the model
	// Activate tells that embeddings are normalised and classes are probabilities,
	// which they are unless the request says otherwise.
	Activate bool
	// ChunkSize is how many tokens one row of token_embed stands for: 0 or 1 one
	// (0.33).
	ChunkSize int
	// LateInteraction is "cache_query" or "score_doc" for the two sides of a score
	// that is computed in the engine; else empty. Query names what they share.
	LateInteraction, Query string
	// SkipReading says that the prompt is not looked up in the prefix cache, as for
	// what is told of each token.
	SkipReading bool
}

// DecodePooling reads the pooling_params of a request.
func (c *Codec) DecodePooling(raw []byte) (Pooling, error) {
	p := Pooling{Activate: true}
	cur := pack.NewCursor(raw)
	n, err := cur.ArrayLen()
	if err != nil {
		return p, fmt.Errorf("PoolingParams: %w", err)
	}
	fields := c.profile.Structs["PoolingParams"].Fields
	for i := range n {
		if i >= len(fields) || cur.Nil() {
			if i >= len(fields) {
				err = cur.Skip()
			}
		} else if err = decodePoolingField(&cur, fields[i].Name, &p); err != nil {
			err = fmt.Errorf("%s: %w", fields[i].Name, err)
		}
		if err != nil {
			return p, fmt.Errorf("PoolingParams.%w", err)
		}
	}
	return p, nil
}

func decodePoolingField(cur *pack.Cursor, name string, p *Pooling) (err error) {
	switch name {
	case "task":
		p.Task, err = cur.StrString()
	case "dimensions":
		p.Dimensions, err = smallInt(cur)
	case "skip_reading_prefix_cache":
		p.SkipReading, err = cur.Bool()
	case "use_activation":
		p.Activate, err = cur.Bool()
	case "late_chunking_params":
		err = decodeLeading(cur, func(i int) (err error) {
			if i == 0 {
				var n int64
				n, err = cur.Int()
				p.ChunkSize = int(min(n, math.MaxInt32))
				return err
			}
			return cur.Skip()
		})
	case "late_interaction_params":
		err = decodeLeading(cur, func(i int) (err error) {
			switch i {
			case 0:
				p.LateInteraction, err = cur.StrString()
			case 1:
				p.Query, err = cur.StrString()
			default:
				err = cur.Skip()
			}
			return err
		})
	default:
		err = cur.Skip()
	}
	return err
}

// decodeLeading reads an array-encoded struct by the places of its fields.
func decodeLeading(cur *pack.Cursor, field func(i int) error) error {
	n, err := cur.ArrayLen()
	for i := 0; i < n && err == nil; i++ {
		err = field(i)
	}
	return err
}
