package protocol

import (
	"errors"
	"fmt"

	"github.com/vllm-vcr/conformance/internal/wire/pack"
)

// Feature is an image or the like in a prompt: the members of a MultiModalFeatureSpec
// that decide about the prefix cache (vllm/multimodal/inputs.py).
type Feature struct {
	ID             string // identifier: a hash of its content
	Offset, Length int    // of its placeholder tokens in the prompt
	Key            string // what an engine keeps its content under: mm_hash, else the identifier
	Named          bool   // the frontend takes it that the engine has the content, and sends none
}

// errNoPlace is the error for a feature whose place is not known.
var errNoPlace = errors.New("identifier, mm_position.offset and mm_position.length are required")

// DecodeFeatures reads the MMFeatures of a request; nil has none. What the features
// hold, which may be large, is passed over.
func DecodeFeatures(raw []byte) ([]Feature, error) {
	if raw == nil {
		return nil, nil
	}
	cur := pack.NewCursor(raw)
	n, err := cur.ArrayLen()
	if err != nil {
		return nil, fmt.Errorf("mm_features: %w", err)
	}
	var features []Feature
	for i := range n {
		f, err := decodeFeature(&cur)
		if err != nil {
			return nil, fmt.Errorf("mm_features[%d]: %w", i, err)
		}
		features = append(features, f)
	}
	return features, nil
}

// FeatureHashes returns the mm_hash of each of the MMFeatures of a request, in their order. Features without one are skipped, and
// what cannot be read ends the list.
func FeatureHashes(raw []byte) (hashes []string) {
	cur := pack.NewCursor(raw)
	n, err := cur.ArrayLen()
	for i := 0; i < n && err == nil; i++ {
		err = decodeMembers(&cur, func(name []byte) (err error) {
			if string(name) != "mm_hash" || cur.Kind() != pack.String {
				return cur.Skip()
			}
			hash, err := cur.StrString()
			hashes = append(hashes, hash)
			return err
		})
	}
	return hashes
}

func decodeFeature(cur *pack.Cursor) (Feature, error) {
	f := Feature{Offset: -1, Length: -1}
	named := false
	err := decodeMembers(cur, func(name []byte) (err error) {
		switch string(name) {
		case "identifier":
			named = true
			f.ID, err = cur.StrString()
		case "mm_hash":
			if !cur.Nil() {
				f.Key, err = cur.StrString()
			}
		case "data":
			if f.Named = cur.Nil(); !f.Named {
				err = cur.Skip()
			}
		case "mm_position":
			err = decodeMembers(cur, func(name []byte) (err error) { return decodePlace(cur, name, &f) })
		default:
			err = cur.Skip()
		}
		return err
	})
	if f.Key == "" {
		f.Key = f.ID
	}
	if err == nil && (!named || f.Offset < 0 || f.Length < 0) {
		err = errNoPlace
	}
	return f, err
}

func decodePlace(cur *pack.Cursor, name []byte, f *Feature) (err error) {
	switch string(name) {
	case "offset":
		f.Offset, err = smallInt(cur)
	case "length":
		f.Length, err = smallInt(cur)
	default:
		err = cur.Skip()
	}
	return err
}

// decodeMembers reads a map; member must read the value of the name. Its errors name
// the member.
func decodeMembers(cur *pack.Cursor, member func(name []byte) error) error {
	n, err := cur.MapLen()
	for ; n > 0 && err == nil; n-- {
		var name []byte
		if name, err = cur.Str(); err != nil {
			break
		}
		if err = member(name); err != nil {
			err = fmt.Errorf("%q: %w", name, err)
		}
	}
	return err
}

// Embeds are the embeddings that a request has in place of prompt tokens, one row for
// each: the bytes of a torch tensor of two dimensions.
type Embeds struct {
	Rows int
	data []byte
}

// Row returns the bytes of the rows from start to end.
func (e *Embeds) Row(start, end int) []byte {
	size := len(e.data) / e.Rows
	return e.data[start*size : end*size]
}

// DecodeEmbeds reads the PromptEmbeds of a request. aux are the auxiliary frames of its
// message, which hold them as a rule.
func DecodeEmbeds(raw []byte, aux [][]byte) (*Embeds, error) {
	cur := pack.NewCursor(raw)
	t, err := readArray(&cur, aux)
	if err != nil {
		return nil, fmt.Errorf("prompt_embeds: %w", err)
	}
	if len(t.Shape) != 2 {
		return nil, fmt.Errorf("prompt_embeds: %d dimensions, want a row for each token", len(t.Shape))
	}
	if rows := t.Shape[0]; rows < 1 || rows > len(t.data) || len(t.data)%rows != 0 {
		return nil, fmt.Errorf("prompt_embeds: %d bytes for %d rows", len(t.data), rows)
	}
	return &Embeds{Rows: t.Shape[0], data: t.data}, nil
}
