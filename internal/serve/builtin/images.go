package builtin

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"image"
	_ "image/gif" // these packages read the sizes of images
	_ "image/jpeg"
	_ "image/png"
	"io"
	"math"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/zeebo/blake3"

	"github.com/vllm-vcr/conformance/internal/engine/tokenizer"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
)

// vision is how a model takes images: an image is so many tokens of the prompt. It is nil for a model of texts.
type vision struct {
	// marker is the place of an image in the text of a chat.
	marker string
	// An image becomes before, pad as often as it has tokens, and after.
	before, after string
	pad           uint32
	padText       string
	tokens        func(width, height int) (int, error)
}

// A contentPart is a text, or an image.
type contentPart struct {
	text  string
	image *imagePart
}

type imagePart struct {
	url, uuid string
	// Where it is in the text of a prompt that [renderSimple] makes, in bytes.
	begin, end int
}

// A mediaItem is an image in a prompt.
type mediaItem struct {
	hash, id       string
	offset, length int // of its tokens
}

// contentParts are the parts of the content of message number at.
func contentParts(raw json.RawMessage, at int) ([]contentPart, *apiError) {
	if absent(raw) {
		return nil, nil
	}
	if raw[0] == '"' {
		var text string
		if json.Unmarshal(raw, &text) != nil {
			return nil, badRequest("messages", "content is not a text")
		}
		return []contentPart{{text: text}}, nil
	}
	var all []struct {
		Type  string          `json:"type"`
		Text  *string         `json:"text"`
		Image json.RawMessage `json:"image_url"`
		UUID  string          `json:"uuid"`
	}
	if json.Unmarshal(raw, &all) != nil {
		return nil, noContent(at)
	}
	parts := make([]contentPart, 0, len(all))
	for _, part := range all {
		switch part.Type {
		case "text", "input_text", "output_text":
			if part.Text == nil {
				return nil, noContent(at)
			}
			parts = append(parts, contentPart{text: *part.Text})
		case "image_url", "input_image":
			var source struct {
				URL    *string `json:"url"`
				Detail *string `json:"detail"`
			}
			if part.Type == "input_image" { // of /v1/responses
				_ = json.Unmarshal(part.Image, &source.URL)
			} else {
				_ = json.Unmarshal(part.Image, &source)
			}
			if source.URL == nil || !slices.Contains([]string{"auto", "low", "high"}, or(source.Detail, "auto")) {
				return nil, noContent(at)
			}
			parts = append(parts, contentPart{image: &imagePart{url: *source.URL, uuid: part.UUID}})
		case "input_audio", "audio_url":
			return nil, unsupportedMedia("audio")
		case "video_url":
			return nil, unsupportedMedia(part.Type)
		default:
			return nil, noContent(at)
		}
	}
	return parts, nil
}

func unsupportedMedia(kind string) *apiError {
	return badRequest("", "unsupported multimodal content: %s", kind)
}

// contentText is a content that has only texts.
func contentText(raw json.RawMessage, at int) (string, *apiError) {
	parts, err := contentParts(raw, at)
	var b strings.Builder
	for _, part := range parts {
		if part.image != nil {
			return "", badRequest("", "Only text content parts are supported for assistant messages.")
		}
		b.WriteString(part.text)
	}
	return b.String(), err
}

// noContent is the error for a content that is none.
func noContent(at int) *apiError {
	return badBody("messages[%d]: content: want a text, or a list of parts", at)
}

// tree is a file of a model.
type tree map[string]any

// at is the value at a path, nil if there is none.
func (t tree) at(path ...string) any {
	var v any = map[string]any(t)
	for _, name := range path {
		inner, _ := v.(map[string]any)
		v = inner[name]
	}
	return v
}

// number is the number at a path, or the first one of the list there; 0 if there is none.
func (t tree) number(path ...string) float64 {
	v := t.at(path...)
	if list, ok := v.([]any); ok && len(list) > 0 {
		v = list[0]
	}
	n, _ := v.(float64)
	return n
}

// text is the text of this name, "" if there is none.
func (t tree) text(name string) string {
	text, _ := t[name].(string)
	return text
}

// idsOf are the ids in a file of a model: a number, or a list of them. It is nil without a number.
func idsOf(v any) (ids []uint32) {
	list, isList := v.([]any)
	if !isList {
		list = []any{v}
	}
	for _, v := range list {
		if id, ok := v.(float64); ok && id >= 0 && id <= math.MaxUint32 {
			ids = append(ids, uint32(id))
		}
	}
	return ids
}

// first is the first number above 0, else otherwise.
func first(otherwise float64, all ...float64) int {
	for _, n := range append(all, otherwise) {
		if n > 0 && n < 1<<40 {
			return int(n)
		}
	}
	return 0
}

// readVision finds out how a model takes images, from config.json and preprocessor_config.json. nil takes none.
func readVision(config, pre tree, tok *tokenizer.Tokenizer) *vision {
	if _, sees := config["vision_config"].(map[string]any); !sees || tok.IsWords() {
		return nil
	}
	token := func(id float64) string {
		if id <= 0 || id >= float64(tok.VocabSize()) {
			return ""
		}
		return tok.Name(uint32(id))
	}
	v := &vision{padText: token(config.number("image_token_id"))}
	if v.padText == "" {
		v.padText = token(config.number("image_token_index"))
	}
	kind := config.text("model_type")
	patch := first(14, config.number("vision_config", "patch_size"))
	side := first(336, config.number("force_image_size"), pre.number("crop_size", "height"), config.number("vision_config", "image_size"), pre.number("size", "height"))
	fixed := func(n int) func(int, int) (int, error) { return func(int, int) (int, error) { return n, nil } }
	switch kind {
	case "gemma3":
		v.marker = token(config.number("boi_token_index"))
		v.before, v.after = "\n\n"+v.marker, token(config.number("eoi_token_index"))+"\n\n"
		v.tokens = fixed(first(256, config.number("mm_tokens_per_image"), pre.number("image_seq_length")))
	case "internvl", "internvl_chat":
		v.before, v.after = "<img>", "</img>"
		ratio := config.number("downsample_ratio")
		tile := first(256, config.number("image_seq_length"), math.Floor(float64(side/patch)*ratio)*math.Floor(float64(side/patch)*ratio))
		most, fewest := first(12, pre.number("max_patches"), config.number("max_dynamic_patch")), first(1, pre.number("min_patches"), config.number("min_dynamic_patch"))
		cut := true // whatever crop_to_patches is
		if kind == "internvl_chat" {
			v.marker, v.padText = "<image>", "<IMG_CONTEXT>"
			cut = config["dynamic_image_size"] == true
		}
		v.tokens = func(width, height int) (int, error) {
			if !cut {
				return tile, nil
			}
			return tile * tiles(width, height, side, fewest, min(most, 64)), nil
		}
	case "llava_next":
		v.tokens = func(width, height int) (int, error) {
			return anyResolution(config, side/patch, side, width, height), nil
		}
	default:
		merge := first(0, pre.number("merge_size"), config.number("vision_config", "spatial_merge_size"))
		if merge > 0 {
			factor := first(14, pre.number("patch_size"), config.number("vision_config", "patch_size")) * merge
			lo := first(56*56, pre.number("min_pixels"), pre.number("size", "shortest_edge"))
			hi := first(28*28*1280, pre.number("max_pixels"), pre.number("size", "longest_edge"))
			v.tokens = func(width, height int) (int, error) { return smartResize(width, height, factor, lo, hi) }
			break
		}
		// LLaVA, and an estimate for the others.
		n := (side / patch) * (side / patch)
		if config["vision_feature_select_strategy"] == "full" {
			n++
		}
		v.tokens = fixed(first(float64(n), config.number("mm_tokens_per_image"), config.number("image_seq_length"), pre.number("image_seq_length")))
	}
	if v.marker == "" {
		v.marker = v.padText
	}
	id, ok := tok.TokenID(v.padText)
	if v.pad = id; !ok || v.marker == "" {
		return nil
	}
	return v
}

// smartResize is how many tokens an image has of the models of Qwen: its sides become multiples of factor, and its area
// gets between lo and hi (transformers/models/qwen2_vl/image_processing_qwen2_vl.py).
func smartResize(width, height, factor, lo, hi int) (int, error) {
	if max(width, height) > 200*min(width, height) {
		return 0, mediaError(fmt.Sprintf("Invalid tensor shape: expected aspect ratio < 200:1, got [%d, %d]", height, width))
	}
	w, h, f := float64(width), float64(height), float64(factor)
	rows, columns := math.RoundToEven(h/f), math.RoundToEven(w/f)
	switch area := rows * f * columns * f; {
	case area > float64(hi):
		scale := math.Sqrt(w * h / float64(hi))
		rows, columns = max(1, math.Floor(h/scale/f)), max(1, math.Floor(w/scale/f))
	case area < float64(lo):
		scale := math.Sqrt(float64(lo) / (w * h))
		rows, columns = math.Ceil(h*scale/f), math.Ceil(w*scale/f)
	}
	return int(rows * columns), nil
}

// tiles is into how many squares InternVL cuts an image, and one more for the whole
// (vllm/transformers_utils/processors/internvl.py).
func tiles(width, height, side, fewest, most int) int {
	type grid struct{ columns, rows int }
	var grids []grid
	for n := fewest; n <= most; n++ {
		for columns := 1; columns <= n; columns++ {
			if n%columns == 0 {
				grids = append(grids, grid{columns, n / columns})
			}
		}
	}
	best, least := grid{1, 1}, math.Inf(1)
	for _, g := range grids {
		switch differs := math.Abs(float64(width)/float64(height) - float64(g.columns)/float64(g.rows)); {
		case differs < least:
			best, least = g, differs
		case differs == least && 2*width*height > side*side*g.columns*g.rows:
			best = g
		}
	}
	n := best.columns * best.rows
	if n > 1 {
		n++
	}
	return n
}

// anyResolution is how many tokens an image has of LLaVA-NeXT: those of the whole, and those of the tiles that it
// covers, with one at the end of each row (vllm/model_executor/models/llava_next.py).
func anyResolution(config tree, patches, side, width, height int) int {
	best, most, least := [2]int{side, side}, -1, 0
	pinpoints, _ := config["image_grid_pinpoints"].([]any)
	for _, p := range pinpoints {
		pair, _ := p.([]any)
		if len(pair) != 2 {
			continue
		}
		h, _ := pair[0].(float64)
		w, _ := pair[1].(float64)
		if h < 1 || w < 1 || h > 1<<16 || w > 1<<16 {
			continue
		}
		scale := min(w/float64(width), h/float64(height))
		covered := min(int(float64(width)*scale)*int(float64(height)*scale), width*height)
		wasted := int(w*h) - covered
		if covered > most || covered == most && wasted < least {
			best, most, least = [2]int{int(h), int(w)}, covered, wasted
		}
	}
	rows, columns := patches*(best[0]/side), patches*(best[1]/side)
	round := func(x float64) int { return int(math.RoundToEven(x*1e7) / 1e7) }
	if float64(width)/float64(height) > float64(columns)/float64(rows) {
		rows -= 2 * ((rows - round(float64(height)*(float64(columns)/float64(width)))) / 2)
	} else {
		columns -= 2 * ((columns - round(float64(width)*(float64(rows)/float64(height)))) / 2)
	}
	return rows*columns + rows + patches*patches
}

// A mediaError is an error in the words of vllm-rs.
type mediaError string

func (e mediaError) Error() string { return string(e) }

// assumedSide is the width and the height of an image that is not fetched.
const assumedSide = 1024

// load finds the name and the size of an image. Nothing is fetched from a network: such an image is named by its URL.
func (p *imagePart) load(root string) (hash string, width, height int, err error) {
	var data []byte
	if strings.HasPrefix(p.url, "data:") {
		data, err = dataOf(p.url)
	} else {
		where, wrong := url.Parse(p.url)
		switch {
		case wrong == nil && (where.Scheme == "http" || where.Scheme == "https") && where.Host != "":
			sum := blake3.Sum256([]byte(p.url))
			return hex.EncodeToString(sum[:]), assumedSide, assumedSide, nil
		case wrong == nil && where.Scheme == "file" && root != "":
			data, err = readBelow(root, where.Path)
		default:
			err = mediaError("invalid media URL: " + p.url)
		}
	}
	if err != nil {
		return "", 0, 0, err
	}
	width, height, err = imageSize(data)
	sum := blake3.Sum256(data)
	return hex.EncodeToString(sum[:]), width, height, err
}

// maxFileBytes is how many bytes a local image may have.
const maxFileBytes = 64 << 20

// readBelow reads a file of a folder. Links do not lead out of it.
func readBelow(folder, path string) ([]byte, error) {
	refused := mediaError("local media path is not allowed: " + path)
	root, err := os.OpenRoot(folder)
	if err != nil {
		return nil, refused
	}
	defer root.Close()
	inside, err := filepath.Rel(folder, filepath.FromSlash(path))
	if err != nil {
		return nil, refused
	}
	info, err := root.Stat(inside)
	if err != nil || !info.Mode().IsRegular() { // a pipe would block
		return nil, refused
	}
	f, err := root.Open(inside)
	if err != nil {
		return nil, refused
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if len(data) > maxFileBytes {
		return nil, mediaError(fmt.Sprintf("the local image %s has more than %d bytes", path, maxFileBytes))
	}
	return data, err
}

// dataOf is what a data: URL holds.
func dataOf(text string) ([]byte, error) {
	head, encoded, ok := strings.Cut(text, ",")
	switch {
	case !ok:
		return nil, mediaError("data URL parse error: missing comma in data url")
	case !strings.HasSuffix(head, ";base64"):
		return nil, mediaError("data URL parse error: only base64 encoded data URLs are supported")
	}
	encoded = strings.TrimSpace(encoded)
	data, err := base64.StdEncoding.DecodeString(encoded)
	if at := base64.CorruptInputError(0); errors.As(err, &at) {
		if int(at) < len(encoded) && encoded[at] != '=' && len(encoded)%4 == 0 {
			return nil, mediaError(fmt.Sprintf("base64 decode error: Invalid symbol %d, offset %d.", encoded[at], at))
		}
		return nil, mediaError("base64 decode error: Invalid padding")
	}
	return data, err
}

// imageSize reads the size of an image from its head.
func imageSize(data []byte) (width, height int, err error) {
	if len(data) >= 30 && string(data[:4]) == "RIFF" && string(data[8:12]) == "WEBP" {
		width, height = webpSize(data)
	} else {
		c, _, failed := image.DecodeConfig(bytes.NewReader(data))
		if failed != nil && !errors.Is(failed, image.ErrFormat) {
			return 0, 0, fmt.Errorf("image decode error: %w", failed)
		}
		width, height = c.Width, c.Height
	}
	if width < 1 || height < 1 || width > 1<<20 || height > 1<<20 {
		return 0, 0, mediaError("image decode error: The image format could not be determined")
	}
	return width, height, nil
}

// webpSize reads the size of a WebP of 30 bytes at least (developers.google.com/speed/webp/docs/riff_container), 0 of
// none.
func webpSize(b []byte) (width, height int) {
	switch string(b[12:16]) {
	case "VP8 ":
		return int(binary.LittleEndian.Uint16(b[26:]) & 0x3fff), int(binary.LittleEndian.Uint16(b[28:]) & 0x3fff)
	case "VP8L":
		n := binary.LittleEndian.Uint32(b[21:])
		return int(n&0x3fff) + 1, int(n>>14&0x3fff) + 1
	case "VP8X":
		return int(b[24]) | int(b[25])<<8 | int(b[26])<<16 + 1, int(b[27]) | int(b[28])<<8 | int(b[29])<<16 + 1
	}
	return 0, 0
}

// seenImages are the images that came lately, as in the cache of vLLM's processor.
type seenImages struct {
	mu     sync.Mutex
	names  map[string]bool
	oldest []string
}

// maxImages is how many images are known. The cache of vLLM has 4 GiB of pixels.
const maxImages = 1 << 12

// add reports whether the image was known.
func (s *seenImages) add(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.names[name] {
		return true
	}
	if s.names == nil {
		s.names = map[string]bool{}
	}
	s.names[name] = true
	if s.oldest = append(s.oldest, name); len(s.oldest) > maxImages {
		delete(s.names, s.oldest[0])
		s.oldest = s.oldest[1:]
	}
	return false
}

// ids are the tokens of a rendered chat, in which each image has as many as the model gives it.
func (s *Server) ids(ctx context.Context, c *chat, text string, special bool) (ids []uint32, items []mediaItem, wrong *apiError) {
	if len(c.media) == 0 {
		ids, wrong = s.encode(ctx, text, special, s.maxModelLen)
		return ids, nil, wrong
	}
	if limit, ok := s.opt.Flags.limits["image"]; ok && len(c.media) > limit {
		return nil, nil, badRequest("", "At most %d image(s) may be provided in one prompt.", limit)
	}
	v := s.model.vision
	if v == nil { // the text has the images by their names
		return s.namedImages(ctx, c, text)
	}
	failed := func(err error) (_ []uint32, _ []mediaItem, _ *apiError) {
		return nil, nil, &apiError{status: http.StatusInternalServerError, message: "failed to submit chat request: multimodal preprocessing error: " + err.Error()}
	}
	total := 0
	for i := range c.media {
		hash, width, height, err := c.media[i].load(s.opt.Flags.MediaPath)
		n := 0
		if err == nil {
			n, err = v.tokens(width, height)
		}
		if err != nil {
			return failed(err)
		}
		item := mediaItem{hash: hash, id: hash, length: n}
		if c.media[i].uuid != "" {
			item.id = c.media[i].uuid
		}
		items = append(items, item)
		s.metrics.image(s.images.add(hash))
		// Prompts that are too long are not made: a small image may have thousands of tokens.
		if total += n; total > s.maxModelLen {
			return nil, nil, s.tooLong(total)
		}
	}
	if mark := v.before + v.padText + v.after; mark != v.marker {
		text = strings.Replace(text, v.marker, mark, len(items))
	}
	plain, wrong := s.encode(ctx, text, special, s.maxModelLen)
	if wrong != nil {
		return nil, nil, wrong
	}
	before, after := 0, 0
	if v.before != "" {
		before, after = len(s.opt.Tokenizer.Encode(v.before)), len(s.opt.Tokenizer.Encode(v.after))
	}
	ids = make([]uint32, 0, len(plain)+total)
	found := 0
	for at, id := range plain {
		if id != v.pad || found == len(items) {
			ids = append(ids, id)
			continue
		}
		item := &items[found]
		found++
		item.offset = max(len(ids)-before, 0)
		for range item.length {
			ids = append(ids, id)
		}
		item.length = len(ids) - item.offset + min(after, len(plain)-at-1)
	}
	if found < len(items) {
		return failed(fmt.Errorf("the chat template wrote %d placeholders for %d images", found, len(items)))
	}
	return ids, items, nil
}

// namedImages is a prompt whose images are texts: each counts as the tokens of its name.
func (s *Server) namedImages(ctx context.Context, c *chat, text string) (ids []uint32, items []mediaItem, wrong *apiError) {
	tokens, at := 0, 0
	count := func(end int) int { // up to this byte
		tokens += len(s.opt.Tokenizer.Encode(text[at:end]))
		at = end
		return tokens
	}
	for _, p := range c.media {
		sum := blake3.Sum256([]byte(p.url))
		item := mediaItem{hash: hex.EncodeToString(sum[:]), offset: count(p.begin)}
		item.id, item.length = item.hash, count(p.end)-item.offset
		items = append(items, item)
	}
	ids, wrong = s.encode(ctx, text, false, s.maxModelLen)
	return ids, items, wrong
}

// appendFeatures writes images as the engine gets them (vllm/multimodal/inputs.py MultiModalFeatureSpec), without their
// pixels.
func appendFeatures(b []byte, items []mediaItem) []byte {
	if len(items) == 0 {
		return b
	}
	b = pack.AppendArrayHeader(b, len(items))
	for _, item := range items {
		b = pack.AppendNil(pack.AppendString(pack.AppendMapHeader(b, 5), "data"))
		b = pack.AppendString(pack.AppendString(b, "modality"), "image")
		b = pack.AppendString(pack.AppendString(b, "identifier"), item.id)
		b = pack.AppendMapHeader(pack.AppendString(b, "mm_position"), 3)
		b = pack.AppendInt(pack.AppendString(b, "offset"), int64(item.offset))
		b = pack.AppendInt(pack.AppendString(b, "length"), int64(item.length))
		b = pack.AppendNil(pack.AppendString(b, "is_embed"))
		b = pack.AppendString(pack.AppendString(b, "mm_hash"), item.hash)
	}
	return b
}
