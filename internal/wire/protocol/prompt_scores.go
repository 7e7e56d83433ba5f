package protocol

import (
	"encoding/binary"
	"fmt"

	"github.com/vllm-vcr/conformance/internal/wire/pack"
)

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

// setIDs reads the bytes of an array of integers.
func (p *PromptScores) setIDs(dtype string, data []byte) error {
	size := map[string]int{"<i8": 8, "<i4": 4, "int64": 8, "int32": 4}[dtype]
	if size == 0 || p.Rows > len(data) || p.Width > len(data) || len(data) != size*p.Rows*p.Width {
		return fmt.Errorf("%d bytes of %q for %d by %d ids", len(data), dtype, p.Rows, p.Width)
	}
	p.IDs = make([]int64, p.Rows*p.Width)
	for i := range p.IDs {
		if size == 8 {
			p.IDs[i] = int64(binary.LittleEndian.Uint64(data[8*i:]))
		} else {
			p.IDs[i] = int64(int32(binary.LittleEndian.Uint32(data[4*i:])))
		}
	}
	return nil
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
	dtype, shape, data, err := decodeTensor(cur, aux)
	if err != nil {
		return err
	}
	if len(shape) != 2 {
		return fmt.Errorf("an array of %d dimensions, want 2", len(shape))
	}
	p.Rows, p.Width = shape[0], shape[1]
	return p.setIDs(dtype, data)
}
