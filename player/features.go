package player

import (
	"crypto/sha256"
	"errors"
	"fmt"

	"github.com/vllm-vcr/conformance/internal/engine/kvcache"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// errNoPrompt is a request that has nothing to go on.
var errNoPrompt = errors.New("neither prompt_token_ids nor prompt_embeds")

// setPrompt gives a request whose prompt is embeddings a token 0 for each, as an engine
// counts them (vllm/v1/request.py).
func setPrompt(r *protocol.Request) error {
	if r.PromptEmbeds == nil {
		if r.PromptTokenIDs == nil {
			return errNoPrompt
		}
		return nil
	}
	embeds, err := protocol.DecodeEmbeds(r.PromptEmbeds, r.Aux)
	if err != nil {
		return err
	}
	if r.PromptTokenIDs == nil {
		r.PromptTokenIDs = make([]uint32, embeds.Rows)
	}
	if n := len(r.PromptTokenIDs); n != embeds.Rows {
		return fmt.Errorf("%d prompt_token_ids, but %d prompt_embeds", n, embeds.Rows)
	}
	return nil
}

// featuresOf is what makes blocks of the same tokens different: images and the like,
// or embeddings.
func featuresOf(r *protocol.Request, blockSize int) ([]kvcache.Feature, error) {
	items, err := protocol.DecodeFeatures(r.MMFeatures)
	if err != nil {
		return nil, err
	}
	if r.PromptEmbeds != nil {
		return embedFeatures(r, items, blockSize)
	}
	var features []kvcache.Feature
	for _, item := range items {
		features = append(features, kvcache.Feature{ID: item.ID, Offset: item.Offset, Length: item.Length})
	}
	return features, nil
}

// embedFeatures has one for each full block of embeddings, by their content
// (vllm/v1/core/kv_cache_utils.py _gen_prompt_embeds_extra_hash_keys). Images beside
// them count in every block.
func embedFeatures(r *protocol.Request, items []protocol.Feature, blockSize int) ([]kvcache.Feature, error) {
	embeds, err := protocol.DecodeEmbeds(r.PromptEmbeds, r.Aux)
	if err != nil {
		return nil, err
	}
	var features []kvcache.Feature
	for start := 0; start+blockSize <= embeds.Rows; start += blockSize {
		hash := sha256.New()
		hash.Write(embeds.Row(start, start+blockSize))
		for _, item := range items {
			fmt.Fprintf(hash, "%s@%d", item.ID, item.Offset)
		}
		features = append(features, kvcache.Feature{ID: string(hash.Sum(nil)), Offset: start, Length: blockSize})
	}
	return features, nil
}
