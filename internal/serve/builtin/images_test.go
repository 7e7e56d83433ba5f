package builtin

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	vcr "github.com/vllm-vcr/conformance"
	"github.com/vllm-vcr/conformance/internal/engine/tokenizer"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// visionModel is a folder with the Qwen2-VL of the capture sessions. template takes the place of its chat template
// unless it is "".
func visionModel(t testing.TB, template string) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(dir, os.DirFS(filepath.FromSlash("../../capture/load/vision"))))
	var files struct{ tokenizer, config map[string]any }
	text, err := vcr.Files.ReadFile(vcr.ModelPath + "/tokenizer.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &files.tokenizer))
	words := []string{"<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>", "<|vision_pad|>", "<image>", "<img>", "</img>", "<IMG_CONTEXT>"}
	for i, word := range words {
		files.tokenizer["added_tokens"] = append(files.tokenizer["added_tokens"].([]any), map[string]any{
			"id": 2048 + i, "content": word, "special": true, "normalized": false, "single_word": false, "lstrip": false, "rstrip": false,
		})
	}
	text, err = json.Marshal(files.tokenizer)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "tokenizer.json"), text, 0o600))
	if template != "" {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "chat_template.jinja"), []byte(template), 0o600))
	}
	return dir
}

// picture is a PNG of one color.
func picture(t testing.TB, width, height int, shade uint8) []byte {
	t.Helper()
	m := image.NewPaletted(image.Rect(0, 0, width, height), color.Palette{color.Gray{Y: shade}})
	var b bytes.Buffer
	require.NoError(t, png.Encode(&b, m))
	return b.Bytes()
}

func dataURL(data []byte) string {
	return "data:image/png;base64," + base64.StdEncoding.EncodeToString(data)
}

// The numbers are those of vllm-rs 0.33.0 (Qwen, LLaVA) and of the Python frontend 0.33.0 (all but Gemma 3), which were
// asked with PNGs of these sizes.
func TestTokensOfImages(t *testing.T) {
	tok, err := tokenizer.Load(visionModel(t, ""))
	require.NoError(t, err)
	const pinpoints = `"image_grid_pinpoints":[[336,672],[672,336],[672,672],[1008,336],[336,1008]]`
	sizes := [][2]int{{28, 28}, {84, 112}, {100, 37}, {336, 336}, {640, 480}, {480, 640}, {1000, 300}, {300, 1000}, {1920, 1080}, {31, 900}, {3000, 2000}}
	tests := []struct {
		name, config, processor, marker string
		want                            []int
	}{
		{
			"qwen2-vl", `{"model_type":"qwen2_vl","image_token_id":2050,"vision_config":{}}`,
			`{"min_pixels":3136,"max_pixels":1003520,"patch_size":14,"merge_size":2}`, "<|image_pad|>",
			[]int{4, 12, 4, 144, 391, 391, 396, 396, 1222, 32, 1247},
		},
		{
			"qwen2.5-vl", `{"model_type":"qwen2_5_vl","image_token_id":2050,"vision_config":{}}`,
			`{"min_pixels":3136,"max_pixels":12845056,"patch_size":14,"merge_size":2}`, "<|image_pad|>",
			[]int{4, 12, 4, 144, 391, 391, 396, 396, 2691, 32, 7597},
		},
		{
			"qwen3-vl", `{"model_type":"qwen3_vl","image_token_id":2050,"vision_config":{"patch_size":16}}`,
			`{"size":{"longest_edge":16777216,"shortest_edge":65536},"patch_size":16,"merge_size":2}`, "<|image_pad|>",
			[]int{64, 70, 70, 100, 300, 300, 279, 279, 2040, 88, 5828},
		},
		{
			"llava", `{"model_type":"llava","image_token_index":2053,"vision_feature_select_strategy":"default","vision_config":{"image_size":336,"patch_size":14}}`,
			`{"crop_size":{"height":336,"width":336},"size":{"shortest_edge":336}}`, "<image>",
			[]int{576, 576, 576, 576, 576, 576, 576, 576, 576, 576, 576},
		},
		{
			"llava-next", `{"model_type":"llava_next","image_token_index":2053,` + pinpoints + `,"vision_config":{"image_size":336,"patch_size":14}}`,
			`{"crop_size":{"height":336,"width":336}}`, "<image>",
			[]int{1176, 1032, 1458, 1176, 2340, 2352, 2182, 2232, 1948, 792, 2144},
		},
		{
			"internvl", `{"model_type":"internvl","image_token_id":2056,"image_seq_length":256,"downsample_ratio":0.5,"vision_config":{"image_size":[448,448],"patch_size":[14,14]}}`,
			`{"crop_to_patches":false,"max_patches":12,"min_patches":1}`, "<IMG_CONTEXT>",
			[]int{256, 3328, 2816, 256, 3328, 3328, 1024, 1024, 2304, 3328, 1792},
		},
		{
			"internvl-chat", `{"model_type":"internvl_chat","dynamic_image_size":true,"max_dynamic_patch":12,"force_image_size":448,"downsample_ratio":0.5,"vision_config":{"image_size":448,"patch_size":14}}`,
			`{}`, "<image>",
			[]int{256, 3328, 2816, 256, 3328, 3328, 1024, 1024, 2304, 3328, 1792},
		},
		{
			"gemma3", `{"model_type":"gemma3","boi_token_index":2048,"eoi_token_index":2049,"image_token_index":2050,"mm_tokens_per_image":256,"vision_config":{}}`,
			`{"image_seq_length":256}`, "<|vision_start|>",
			[]int{256, 256, 256, 256, 256, 256, 256, 256, 256, 256, 256},
		},
		{"another model", `{"model_type":"new","image_token_id":2050,"vision_config":{"image_size":28,"patch_size":14}}`, `{}`, "<|image_pad|>", []int{4}},
		{"numbers that are none", `{"model_type":"qwen2_vl","image_token_id":2050,"vision_config":{"patch_size":"x"}}`, `{"size":7,"merge_size":2,"max_pixels":-1}`, "<|image_pad|>", []int{4}},
		{"a model of texts", `{"model_type":"qwen3"}`, `{}`, "", nil},
		{"no token", `{"model_type":"qwen2_vl","image_token_id":99999,"vision_config":{}}`, `{}`, "", nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var config, processor tree
			require.NoError(t, json.Unmarshal([]byte(test.config), &config))
			require.NoError(t, json.Unmarshal([]byte(test.processor), &processor))
			v := readVision(config, processor, tok)
			if (v == nil) != (test.want == nil) {
				t.Fatalf("got %v", v)
			}
			if v != nil {
				require.Equal(t, v.marker, test.marker, "marker")
			}
			for i, want := range test.want {
				if got, err := v.tokens(sizes[i][0], sizes[i][1]); got != want || err != nil {
					t.Errorf("%d×%d: %d tokens, %v, want %d", sizes[i][0], sizes[i][1], got, err, want)
				}
			}
		})
	}
}

// The heads are those of files by Pillow.
func TestSizesOfImages(t *testing.T) {
	heads := map[string]string{
		"VP8":  "UklGRiQAAABXRUJQVlA4IBgAAAAwAQCdASoDAAUADMDOJaQAA3AA/uwdgAA=",
		"VP8L": "UklGRiAAAABXRUJQVlA4TBQAAAAvAgABAAdQgVQIIAAKmv7HiIj+Bw==",
	}
	for name, text := range heads {
		data, err := base64.StdEncoding.DecodeString(text)
		require.NoError(t, err)
		if w, h, err := imageSize(data); w != 3 || h != 5 || err != nil {
			t.Errorf("%s: %d×%d, %v, want 3×5", name, w, h, err)
		}
	}
	extended := append([]byte("RIFF\x00\x00\x00\x00WEBPVP8X\x0a\x00\x00\x00\x00\x00\x00\x00"), 2, 1, 0, 4, 0, 0)
	if w, h, err := imageSize(extended); w != 259 || h != 5 || err != nil {
		t.Errorf("VP8X: %d×%d, %v, want 259×5", w, h, err)
	}
}

// Files are read below one folder alone, and what is not a file is not read.
func TestLocalImages(t *testing.T) {
	folder, outside := t.TempDir(), filepath.Join(t.TempDir(), "secret.png")
	inside := filepath.Join(folder, "a.png")
	for _, path := range []string{inside, outside} {
		require.NoError(t, os.WriteFile(path, picture(t, 84, 112, 1), 0o600))
	}
	require.NoError(t, os.Symlink(outside, filepath.Join(folder, "link.png")))
	for path, want := range map[string]bool{
		inside: true, filepath.Join(folder, "x", "..", "a.png"): true, outside: false, filepath.Join(folder, "link.png"): false,
		filepath.Join(folder, "..", filepath.Base(filepath.Dir(outside)), "secret.png"): false, folder: false, filepath.Join(folder, "none.png"): false,
	} {
		p := imagePart{url: "file://" + filepath.ToSlash(path)}
		if _, w, h, err := p.load(folder); (err == nil) != want || want && (w != 84 || h != 112) {
			t.Errorf("%s: %d×%d, %v", path, w, h, err)
		}
		if _, _, _, err := p.load(""); err == nil {
			t.Errorf("%s is read without --allowed-local-media-path", path)
		}
	}
}

// A file that is too large is refused, and not read in part.
func TestLargeLocalImage(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "large.png")
	require.NoError(t, os.WriteFile(path, picture(t, 84, 112, 1), 0o600))
	p := imagePart{url: "file://" + filepath.ToSlash(path)}
	for size, want := range map[int64]string{maxFileBytes: "", maxFileBytes + 1: "the local image " + path + " has more than 67108864 bytes"} {
		require.NoError(t, os.Truncate(path, size))
		_, w, h, err := p.load(folder)
		if want == "" && (err != nil || w != 84 || h != 112) || want != "" && (err == nil || err.Error() != want) {
			t.Errorf("%d bytes: %d×%d, %v, want the error %q", size, w, h, err, want)
		}
	}
}

// The prefix cache knows images by what they are: the same one is found again, and another one of the same size is not.
func TestImagesInThePrefixCache(t *testing.T) {
	url, s, _ := servingModel(t, visionModel(t, ""), nil, "--enable-prompt-tokens-details")
	ask := func(shades ...uint8) (tokens, cached, images int) {
		var parts strings.Builder
		for _, shade := range shades {
			fmt.Fprintf(&parts, `{"type":"image_url","image_url":{"url":%q}},`, dataURL(picture(t, 336, 336, shade)))
		}
		r, err := post(t.Context(), url, "/v1/chat/completions", `{"max_tokens":1,"messages":[{"role":"user","content":[`+parts.String()+`{"type":"text","text":"hi"}]}]}`)
		require.NoError(t, err)
		defer r.Body.Close()
		var answer struct {
			Usage struct {
				Prompt  int `json:"prompt_tokens"`
				Details struct {
					Cached int            `json:"cached_tokens"`
					Media  map[string]int `json:"multimodal_tokens"`
				} `json:"prompt_tokens_details"`
			}
		}
		text, err := io.ReadAll(r.Body)
		require.NoError(t, err)
		if r.StatusCode != http.StatusOK {
			t.Fatalf("%d %s", r.StatusCode, text)
		}
		require.NoError(t, json.Unmarshal(text, &answer))
		return answer.Usage.Prompt, answer.Usage.Details.Cached, answer.Usage.Details.Media["image"]
	}
	for _, test := range []struct {
		name           string
		shades         []uint8
		prompt, images int
		cached         bool
	}{
		{"the first", []uint8{1}, 159, 144, false},
		{"another one", []uint8{2}, 159, 144, false},
		{"the first again", []uint8{1}, 159, 144, true},
		{"two", []uint8{2, 3}, 305, 288, true},
	} {
		prompt, cached, images := ask(test.shades...)
		require.True(t, prompt == test.prompt && images == test.images && cached > 100 == test.cached, "%s: %d tokens, %d cached, %d of images", test.name, prompt, cached, images)
	}
	if queries, hits := value(s, "vllm:mm_cache_queries_total"), value(s, "vllm:mm_cache_hits_total"); queries != "5" || hits != "2" {
		t.Errorf("%s queries and %s hits of the cache of images, want 5 and 2", queries, hits)
	}
}

// A request with many small images is refused before its prompt is made.
func TestTooManyImages(t *testing.T) {
	url, _, _ := servingModel(t, visionModel(t, ""), nil)
	part := fmt.Sprintf(`,{"type":"image_url","image_url":{"url":%q}}`, dataURL(picture(t, 1120, 900, 1)))
	r, err := post(t.Context(), url, "/v1/chat/completions", `{"messages":[{"role":"user","content":[{"type":"text","text":"hi"}`+strings.Repeat(part, 1000)+`]}]}`)
	require.NoError(t, err)
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	require.True(t, r.StatusCode == http.StatusBadRequest && strings.Contains(string(text), "your prompt contains 5120 input tokens"), "%d %s", r.StatusCode, text)
}
