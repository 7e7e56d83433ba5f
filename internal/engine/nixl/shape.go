package nixl

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/vllm-vcr/conformance/internal/base/jsonout"
	"github.com/vllm-vcr/conformance/internal/engine/kvtransfer"
)

// Options are what a player cannot know of the engine in whose place it moves KV caches.
type Options struct {
	// Model is the folder of the model, as --model of the engine has it: the hash contains this text.
	Model string `json:"model"`
	// Config is the text of the model's config.json; default that of the file in Model.
	Config []byte `json:"-"`
	// DType is the type of the model and of its cache: "float32", "bfloat16", "float16"; default that of config.json.
	DType string `json:"dtype"`
	// CacheDType is --kv-cache-dtype; default "auto".
	CacheDType string `json:"kv_cache_dtype"`
	// AttnBackend is the attention backend; default "CPU_ATTN".
	AttnBackend string `json:"attention_backend"`
	// Layout is the layout of the cache; default that of the line's connector.
	Layout string `json:"kv_cache_layout"`
	// Release is vllm.__version__ of the engine; default that of the line's profile.
	Release string `json:"release"`
	// NoHMA is --disable-hybrid-kv-cache-manager.
	NoHMA bool `json:"disable_hybrid_kv_cache_manager"`
	// Layers is the name of a layer, in which %d is its number; default model.layers.%d.self_attn.attn.
	Layers string `json:"layer_name"`
	// Python is an interpreter that has nixl; default the one that `vllm-vcr capture nixl` installs.
	Python string `json:"python"`
	// Fault is what goes wrong with handshakes, see [Faults].
	Fault string `json:"fault"`
}

// ParseOptions reads a JSON object.
func ParseOptions(text string) (o Options, err error) {
	if err = jsonout.ReadObject(text, &o); err != nil {
		return o, fmt.Errorf(`%w: want a JSON object such as {"model":"models/tiny","dtype":"bfloat16"}`, err)
	}
	if o.Model == "" {
		return o, fmt.Errorf(`no "model": want the folder of the model, as the other engine has it`)
	}
	return o, checkFault(o.Fault)
}

// modelConfig is what config.json says of the KV cache.
type modelConfig struct {
	Layers     int             `json:"num_hidden_layers"`
	Heads      int             `json:"num_attention_heads"`
	KVHeads    int             `json:"num_key_value_heads"`
	HeadSize   int             `json:"head_dim"`
	Hidden     int             `json:"hidden_size"`
	TorchDType string          `json:"torch_dtype"`
	DType      string          `json:"dtype"`
	LatentRank int             `json:"kv_lora_rank"`
	LayerTypes []string        `json:"layer_types"`
	Text       json.RawMessage `json:"text_config"`
}

var sizes = map[string]int{"float32": 4, "bfloat16": 2, "float16": 2}

// shape computes the metadata of a worker, without addresses, and the hash of the engine.
func (l *Line) shape(o Options, form kvtransfer.Form) (m Metadata, hash string, err error) {
	path := filepath.Join(o.Model, "config.json")
	text := o.Config
	if text == nil {
		if text, err = os.ReadFile(path); err != nil {
			return m, "", fmt.Errorf("NIXL: %w", err)
		}
	}
	var c modelConfig
	if err = json.Unmarshal(text, &c); err == nil && c.Text != nil {
		err = json.Unmarshal(c.Text, &c)
	}
	if err != nil {
		return m, "", fmt.Errorf("NIXL: %s: %w", path, err)
	}
	c.KVHeads = cmp.Or(c.KVHeads, c.Heads)
	if c.HeadSize == 0 && c.Heads > 0 {
		c.HeadSize = c.Hidden / c.Heads
	}
	dtype := cmp.Or(o.DType, c.DType, c.TorchDType)
	size := sizes[dtype]
	if strings.HasPrefix(o.CacheDType, "fp8") {
		size = 1
	}
	switch {
	case c.LatentRank > 0:
		return m, "", fmt.Errorf("NIXL: %s: the cache of a model with kv_lora_rank has another form", path)
	case len(c.LayerTypes) > 0 && strings.Count(strings.Join(c.LayerTypes, " "), "full_attention") != len(c.LayerTypes):
		return m, "", fmt.Errorf("NIXL: %s: the cache of a model with layers other than full_attention has another form", path)
	case c.Layers < 1 || c.KVHeads < 1 || c.HeadSize < 1 || size == 0:
		return m, "", fmt.Errorf("NIXL: %s: %d layers, %d KV heads of %d values of type %q: want a model of float32, bfloat16 or float16",
			path, c.Layers, c.KVHeads, c.HeadSize, dtype)
	}
	backend := cmp.Or(o.AttnBackend, "CPU_ATTN")
	hash, err = l.CompatibilityHash(Config{
		Release: o.Release, Model: o.Model, DType: "torch." + dtype, KVHeads: c.KVHeads, HeadSize: c.HeadSize, Layers: c.Layers,
		AttnBackend: backend, CacheDType: o.CacheDType, NoHMA: o.NoHMA,
	})
	layout := "LBHNC"                                                                                   // since 0.29, as block_strides
	regions, length := c.Layers, form.BlockSize*max(c.KVHeads/form.TensorParallel, 1)*c.HeadSize*size*2 // keys and values
	if !l.hasField("block_strides") {
		layout = "HND"
	}
	if !l.HasPipelineRank() { // 0.25 has a region for keys and one for values
		regions, length = 2*regions, length/2
	}
	m = Metadata{
		Blocks: form.Blocks, BlockSize: form.BlockSize, Layout: cmp.Or(o.Layout, layout), AttnBackend: backend, PhysicalBlocks: 1,
		DCPSize: 1, PCPSize: 1,
	}
	for i := range regions {
		m.BlockLens, m.BlockStrides = append(m.BlockLens, length), append(m.BlockStrides, length)
		m.RegionBlocks, m.RegionGroups = append(m.RegionBlocks, form.Blocks), append(m.RegionGroups, 0)
		m.RegionNames = append(m.RegionNames, strings.ReplaceAll(cmp.Or(o.Layers, "model.layers.%d.self_attn.attn"), "%d", fmt.Sprint(i)))
		m.RegionMemory = append(m.RegionMemory, "DRAM")
	}
	return m, hash, err
}

func (l *Line) hasField(name string) bool { return l.Structs["NixlAgentMetadata"].Index(name) >= 0 }
