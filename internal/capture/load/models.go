package load

import (
	"cmp"
	"embed"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
)

// Models are the models that a session can ask for: tiny is the one of the targets, the others are made of it.
func Models() []string { return []string{"tiny", "moe", "vision"} }

//go:embed vision
var visionFiles embed.FS

//go:embed calls.py
var callsScript []byte

// CallsScript is where Prepare puts the program that is started in place of vLLM's own for a frontend with the route /call.
func CallsScript(dir string) string { return filepath.Join(dir, "calls.py") }

// Adapters are the low-rank adapters that Prepare makes, in the folder lora.
var adapters = []string{"a1", "a2", "a3"}

// Prepare makes in dir what the session names: its model out of the folder of the tiny one, and adapters of random weights.
// It returns the folder of the model.
func (s *Session) Prepare(dir, tiny string) (model string, err error) {
	for i, name := range adapters {
		if err := writeAdapter(filepath.Join(dir, "lora", name), tiny, uint64(i+1)); err != nil {
			return "", fmt.Errorf("adapter %s: %w", name, err)
		}
	}
	if s.Calls {
		if err := os.WriteFile(CallsScript(dir), callsScript, 0o644); err != nil {
			return "", err
		}
	}
	if s.Model == "tiny" {
		return tiny, nil
	}
	model = filepath.Join(dir, s.Model)
	if err := os.CopyFS(model, os.DirFS(tiny)); err != nil {
		return "", err
	}
	if s.Model == "moe" {
		err = edit(filepath.Join(model, "config.json"), mixture)
	} else {
		err = makeVision(model)
	}
	return model, err
}

// mixture makes a model of experts, for which the ranks of a group run together, in waves. All its layers are plain: data-parallel
// engines for the CPU fail in the exchange between experts (all_gatherv), and what they say needs none. Of the models whose layers
// may all be plain this one serves.
func mixture(config map[string]any) {
	maps.Copy(config, map[string]any{
		"architectures": []string{"Qwen2MoeForCausalLM"}, "model_type": "qwen2_moe", "num_attention_heads": 2, "num_key_value_heads": 1,
		"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "shared_expert_intermediate_size": 64,
		"decoder_sparse_step": 1, "norm_topk_prob": true, "mlp_only_layers": []int{0, 1}, "router_aux_loss_coef": 0.001,
	})
}

// makeVision makes a model of images in the folder of the tiny one.
func makeVision(model string) error {
	tokenizer, err := os.ReadFile(filepath.Join(model, "tokenizer.json"))
	if err != nil {
		return err
	}
	files, err := Vision(tokenizer)
	for name, text := range files {
		err = cmp.Or(err, os.WriteFile(filepath.Join(model, name), text, 0o644))
	}
	return err
}

// Vision are the files of a model of images, which has the tokens of a tokenizer.json and five more.
func Vision(tokenizer []byte) (files map[string][]byte, err error) {
	files = map[string][]byte{}
	entries, err := visionFiles.ReadDir("vision")
	for _, f := range entries {
		if files[f.Name()], err = visionFiles.ReadFile("vision/" + f.Name()); err != nil {
			return nil, err
		}
	}
	value := map[string]any{}
	if err = cmp.Or(err, json.Unmarshal(tokenizer, &value)); err != nil {
		return nil, err
	}
	added, _ := value["added_tokens"].([]any)
	for i, word := range []string{"vision_start", "vision_end", "image_pad", "video_pad", "vision_pad"} {
		added = append(added, map[string]any{
			"id": 2048 + i, "content": "<|" + word + "|>", "special": true, "normalized": false, "single_word": false,
			"lstrip": false, "rstrip": false,
		})
	}
	value["added_tokens"] = added
	files["tokenizer.json"], err = json.Marshal(value)
	return files, err
}

// edit changes a JSON file.
func edit(path string, change func(map[string]any)) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	value := map[string]any{}
	if err := json.Unmarshal(data, &value); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	change(value)
	if data, err = json.Marshal(value); err != nil {
		return err
	}
	return os.WriteFile(path, data, 0o644)
}

const adapterRank = 8

// writeAdapter writes an adapter of the model's attention, as peft does: a configuration and the weights in safetensors.
func writeAdapter(dir, tiny string, seed uint64) error {
	data, err := os.ReadFile(filepath.Join(tiny, "config.json"))
	if err != nil {
		return err
	}
	var model struct {
		Hidden int `json:"hidden_size"`
		Layers int `json:"num_hidden_layers"`
		Heads  int `json:"num_attention_heads"`
		KV     int `json:"num_key_value_heads"`
		Head   int `json:"head_dim"`
	}
	if err := json.Unmarshal(data, &model); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	shapes := map[string][2]int{}
	for layer := range model.Layers {
		for name, out := range map[string]int{"q_proj": model.Heads * model.Head, "v_proj": model.KV * model.Head} {
			base := fmt.Sprintf("base_model.model.model.layers.%d.self_attn.%s.lora_", layer, name)
			shapes[base+"A.weight"] = [2]int{adapterRank, model.Hidden}
			shapes[base+"B.weight"] = [2]int{out, adapterRank}
		}
	}
	config := fmt.Sprintf(`{"peft_type":"LORA","task_type":"CAUSAL_LM","r":%d,"lora_alpha":16,"lora_dropout":0.0,"bias":"none",`+
		`"target_modules":["q_proj","v_proj"],"base_model_name_or_path":"tiny","fan_in_fan_out":false,"inference_mode":true}`, adapterRank)
	if err := os.WriteFile(filepath.Join(dir, "adapter_config.json"), []byte(config), 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "adapter_model.safetensors"), safetensors(shapes, rand.New(rand.NewPCG(seed, 0))), 0o644)
}

// safetensors is a file of random float32 tensors: the length of a JSON header, the header, and the numbers.
func safetensors(shapes map[string][2]int, rng *rand.Rand) []byte {
	header, weights := map[string]any{}, []byte(nil)
	for _, name := range slices.Sorted(maps.Keys(shapes)) {
		begin := len(weights)
		for range shapes[name][0] * shapes[name][1] {
			weights = binary.LittleEndian.AppendUint32(weights, math.Float32bits(float32(rng.NormFloat64()/10)))
		}
		header[name] = map[string]any{"dtype": "F32", "shape": shapes[name], "data_offsets": [2]int{begin, len(weights)}}
	}
	text, err := json.Marshal(header)
	if err != nil {
		panic(err) // strings and numbers
	}
	file := binary.LittleEndian.AppendUint64(nil, uint64(len(text)))
	return append(append(file, text...), weights...)
}
