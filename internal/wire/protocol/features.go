package protocol

import (
	"cmp"
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

// DecodeFeatures reads the MMFeatures of a request; nil has none. What the features
// hold, which may be large, is passed over.
func DecodeFeatures(raw []byte) ([]Feature, error) {
	if raw == nil {
		return nil, nil
	}
	list := ViewOf(raw)
	if list.Kind() != pack.Array {
		return nil, fmt.Errorf("mm_features: an array was expected, found %s", list.Kind())
	}
	var features []Feature
	for part := range list.Parts() {
		place, data := part.Field("mm_position"), part.Field("data")
		f := Feature{ID: part.Field("identifier").Text(), Key: part.Field("mm_hash").Text(), Named: !data.IsAbsent() && !data.Given()}
		var hasOffset, hasLength bool
		f.Offset, hasOffset = place.Field("offset").small()
		f.Length, hasLength = place.Field("length").small()
		if part.Field("identifier").Kind() != pack.String || !hasOffset || !hasLength {
			return nil, fmt.Errorf("mm_features%s: identifier, mm_position.offset and mm_position.length are required", part.Path())
		}
		f.Key = cmp.Or(f.Key, f.ID)
		features = append(features, f)
	}
	return features, nil
}

// FeatureHashes returns the mm_hash of each of the MMFeatures of a request, in their order. Features without one are skipped.
func FeatureHashes(raw []byte) (hashes []string) {
	for part := range ViewOf(raw).Parts() {
		if hash := part.Field("mm_hash"); hash.Kind() == pack.String {
			hashes = append(hashes, hash.Text())
		}
	}
	return hashes
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
