package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// maxID bounds the ids of a vocabulary: memory is taken for as many as the largest.
const maxID = 1 << 22

// file is a tokenizer.json.
type file struct {
	AddedTokens   []addedToken    `json:"added_tokens"`
	Normalizer    json.RawMessage `json:"normalizer"`
	PreTokenizer  json.RawMessage `json:"pre_tokenizer"`
	PostProcessor json.RawMessage `json:"post_processor"`
	Decoder       json.RawMessage `json:"decoder"`
	Model         json.RawMessage `json:"model"`
}

// Parse reads the text of a tokenizer.json. An error names the part of it that is wrong or not supported.
func Parse(raw []byte) (*Tokenizer, error) {
	var f file
	if err := json.Unmarshal(raw, &f); err != nil {
		return nil, fmt.Errorf("not a tokenizer.json: %w", err)
	}
	t := &Tokenizer{}
	var err error
	for _, part := range []struct {
		name string
		read func() error
	}{
		{"model", func() error { return t.model.parse(f.Model) }},
		{"normalizer", func() error { t.normalize, err = parseNormalizer(f.Normalizer); return err }},
		{"pre_tokenizer", func() error { t.split, err = parseSplit(f.PreTokenizer); return err }},
		{"added_tokens", func() error { return t.add(f.AddedTokens) }},
		{"decoder", func() error { return checkDecoder(f.Decoder) }},
		{"post_processor", func() error { return t.parseTemplate(f.PostProcessor) }},
	} {
		if err := part.read(); err != nil {
			return nil, fmt.Errorf("%s: %w", part.name, err)
		}
	}
	t.maxBytes = t.bound(f.AddedTokens)
	return t, nil
}

// bound is maxBytes of a tokenizer.
func (t *Tokenizer) bound(added []addedToken) int {
	n := t.model.longest
	for _, token := range added {
		if n = max(n, len(token.Content)); token.LStrip || token.RStrip {
			return 0 // with any white space
		}
	}
	for _, s := range t.split {
		if p, ok := s.(*pattern); ok && (p.dropMatches || p.dropRest) {
			return 0
		}
	}
	switch {
	case t.model.drops:
		return 0
	case t.normalize != nil:
		return 8 * n // a form of Unicode makes one character of at most four, and one byte of at most four
	}
	return n
}

// absent reports whether a key is missing or null.
func absent(raw json.RawMessage) bool { return len(raw) == 0 || string(raw) == "null" }

// kind is what each part begins with.
type kind struct {
	Type          string            `json:"type"`
	Normalizers   []json.RawMessage `json:"normalizers"`
	PreTokenizers []json.RawMessage `json:"pretokenizers"`
	Processors    []json.RawMessage `json:"processors"`
	Decoders      []json.RawMessage `json:"decoders"`
}

// parts returns the parts of a Sequence, of Sequences in it too, or the one part that there is.
func parts(raw json.RawMessage) (parts []json.RawMessage, types []string, err error) {
	if absent(raw) {
		return nil, nil, nil
	}
	return appendParts(nil, nil, raw, 0)
}

// maxSequences is how deep Sequences are in each other. Each is read once for those around it.
const maxSequences = 8

func appendParts(parts []json.RawMessage, types []string, raw json.RawMessage, depth int) ([]json.RawMessage, []string, error) {
	switch {
	case absent(raw): // nothing may be missing in a Sequence
		return nil, nil, errors.New("null in a Sequence")
	case depth > maxSequences:
		return nil, nil, fmt.Errorf("a Sequence more than %d deep", maxSequences)
	}
	var k kind
	if err := json.Unmarshal(raw, &k); err != nil {
		return nil, nil, err
	}
	if k.Type != "Sequence" {
		return append(parts, raw), append(types, k.Type), nil
	}
	var err error
	for _, inner := range slices.Concat(k.Normalizers, k.PreTokenizers, k.Processors, k.Decoders) {
		if parts, types, err = appendParts(parts, types, inner, depth+1); err != nil {
			return nil, nil, err
		}
	}
	return parts, types, nil
}

func parseNormalizer(raw json.RawMessage) (normalizer, error) {
	_, types, err := parts(raw)
	if err != nil {
		return nil, err
	}
	var n normalizer
	for _, name := range types {
		form := forms[name]
		if form == nil {
			return nil, fmt.Errorf("type %q is not supported: want %s or a Sequence of them",
				name, strings.Join(slices.Sorted(maps.Keys(forms)), ", "))
		}
		n = append(n, form)
	}
	return n, nil
}

// parseSplit reads a pre-tokenizer. It must end in ByteLevel, which makes bytes of each piece.
func parseSplit(raw json.RawMessage) (splitters []splitter, err error) {
	parts, types, err := parts(raw)
	if err != nil {
		return nil, err
	}
	if len(types) == 0 || types[len(types)-1] != "ByteLevel" || slices.Index(types, "ByteLevel") != len(types)-1 {
		return nil, fmt.Errorf("%q is not supported: only a model over bytes, with one ByteLevel at its end, is", types)
	}
	for i, part := range parts {
		var s []splitter
		switch types[i] {
		case "ByteLevel":
			s, err = parseByteLevel(part)
		case "Split":
			s, err = parsePattern(part)
		case "Digits":
			s, err = parseDigits(part)
		default:
			err = fmt.Errorf("type %q is not supported: want ByteLevel, Split, Digits or a Sequence of them", types[i])
		}
		if err != nil {
			return nil, err
		}
		splitters = append(splitters, s...)
	}
	return splitters, nil
}

func parseByteLevel(raw json.RawMessage) (splitters []splitter, err error) {
	part := struct {
		AddPrefixSpace bool `json:"add_prefix_space"`
		UseRegex       bool `json:"use_regex"`
	}{UseRegex: true} // what a file without the key means
	if err := json.Unmarshal(raw, &part); err != nil {
		return nil, fmt.Errorf("ByteLevel: %w", err)
	}
	if part.AddPrefixSpace {
		splitters = append(splitters, prefixSpace{})
	}
	if part.UseRegex {
		gpt2, err := newPattern(gpt2Pattern)
		if err != nil {
			return nil, err
		}
		splitters = append(splitters, gpt2)
	}
	return splitters, nil
}

func parsePattern(raw json.RawMessage) ([]splitter, error) {
	var part struct {
		Pattern struct {
			Regex  *string
			String *string
		} `json:"pattern"`
		Behavior string `json:"behavior"`
		Invert   bool   `json:"invert"`
	}
	if err := json.Unmarshal(raw, &part); err != nil {
		return nil, fmt.Errorf("split: %w", err)
	}
	p, err := (*pattern)(nil), error(nil)
	switch {
	case part.Pattern.Regex != nil:
		p, err = newPattern(*part.Pattern.Regex)
	case part.Pattern.String != nil && *part.Pattern.String != "":
		p, err = newPattern(regexp.QuoteMeta(*part.Pattern.String))
	default:
		err = errors.New("split without a pattern")
	}
	if err != nil {
		return nil, err
	}
	switch part.Behavior {
	case "Isolated":
	case "Removed":
		p.dropMatches, p.dropRest = !part.Invert, part.Invert
	default:
		return nil, fmt.Errorf("split with behavior %q is not supported: want Isolated or Removed", part.Behavior)
	}
	return []splitter{p}, nil
}

func parseDigits(raw json.RawMessage) ([]splitter, error) {
	var part struct {
		IndividualDigits bool `json:"individual_digits"`
	}
	if err := json.Unmarshal(raw, &part); err != nil {
		return nil, fmt.Errorf("digits: %w", err)
	}
	return []splitter{digits{part.IndividualDigits}}, nil
}

// checkDecoder refuses what decodes otherwise than by bytes.
func checkDecoder(raw json.RawMessage) error {
	_, types, err := parts(raw)
	if err != nil || len(types) == 0 {
		return err
	}
	if len(types) != 1 || types[0] != "ByteLevel" {
		return fmt.Errorf("%q is not supported: want ByteLevel", types)
	}
	return nil
}

// parse reads a BPE model.
func (m *bpe) parse(raw json.RawMessage) error {
	if absent(raw) {
		return errors.New("missing: not a tokenizer.json")
	}
	var part struct {
		Type         string          `json:"type"`
		Vocab        json.RawMessage `json:"vocab"`
		Merges       json.RawMessage `json:"merges"`
		Dropout      float64         `json:"dropout"`
		Unknown      *string         `json:"unk_token"`
		Prefix       string          `json:"continuing_subword_prefix"`
		Suffix       string          `json:"end_of_word_suffix"`
		FuseUnknown  bool            `json:"fuse_unk"`
		IgnoreMerges bool            `json:"ignore_merges"`
	}
	if err := json.Unmarshal(raw, &part); err != nil {
		return err
	}
	switch {
	case part.Type != "BPE" && (part.Type != "" || absent(part.Merges)):
		return fmt.Errorf("type %q is not supported: want BPE", part.Type)
	case absent(part.Merges):
		return errors.New("merges are missing")
	case part.Dropout != 0:
		return errors.New("dropout is not supported: its tokens are random")
	case part.Prefix != "" || part.Suffix != "":
		return errors.New("continuing_subword_prefix and end_of_word_suffix are not supported")
	}
	m.whole, m.fuse, m.unknown = part.IgnoreMerges, part.FuseUnknown, -1
	if err := m.parseVocab(part.Vocab); err != nil {
		return err
	}
	if part.Unknown != nil {
		id, ok := m.vocab[*part.Unknown]
		if !ok {
			return fmt.Errorf("unk_token %.100q is not in the vocabulary", *part.Unknown)
		}
		m.unknown = int64(id)
	}
	m.drops = slices.Contains(m.bytes[:], -1) && (m.unknown < 0 || m.fuse)
	return m.parseMerges(part.Merges)
}

func (m *bpe) parseVocab(raw json.RawMessage) error {
	if err := json.Unmarshal(raw, &m.vocab); err != nil {
		return fmt.Errorf("vocab: %w", err)
	}
	if len(m.vocab) == 0 {
		return errors.New("vocab: it is empty")
	}
	names := make(map[uint32]string, len(m.vocab))
	for name, id := range m.vocab {
		if id > maxID {
			return fmt.Errorf("vocab: token %.100q has id %d: want at most %d", name, id, maxID)
		}
		if other, ok := names[id]; ok {
			return fmt.Errorf("vocab: tokens %.100q and %.100q both have id %d", min(name, other), max(name, other), id)
		}
		names[id] = name
	}
	for name := range m.vocab {
		m.longest = max(m.longest, len(fromAlphabet(name)))
	}
	for b := range m.bytes {
		m.bytes[b] = -1
		if id, ok := m.vocab[string(alphabet[b])]; ok {
			m.bytes[b] = int64(id)
		}
	}
	return nil
}

func (m *bpe) parseMerges(raw json.RawMessage) error {
	merges, err := splitMerges(raw)
	if err != nil {
		return fmt.Errorf("merges: %w", err)
	}
	m.merges = make(map[[2]uint32]merge, len(merges))
	for rank, parts := range merges {
		if len(parts) != 2 {
			return fmt.Errorf("merges: entry %d: %d parts: want 2", rank, len(parts))
		}
		left, right := parts[0], parts[1]
		var ids [3]uint32
		for i, name := range []string{left, right, left + right} {
			id, ok := m.vocab[name]
			if !ok {
				return fmt.Errorf("merges: entry %d: %.100q is not in the vocabulary", rank, name)
			}
			ids[i] = id
		}
		m.merges[[2]uint32{ids[0], ids[1]}] = merge{uint32(rank), ids[2]}
	}
	return nil
}

// splitMerges reads a list of "left right" or of ["left", "right"]: thousands of entries, so all at once where they are of one kind.
func splitMerges(raw json.RawMessage) (merges [][]string, err error) {
	var joined []string
	if json.Unmarshal(raw, &joined) == nil {
		for _, text := range joined {
			merges = append(merges, strings.Split(text, " "))
		}
		return merges, nil
	}
	if json.Unmarshal(raw, &merges) == nil {
		return merges, nil
	}
	var entries []json.RawMessage
	if err := json.Unmarshal(raw, &entries); err != nil {
		return nil, err
	}
	merges = make([][]string, len(entries))
	for rank, entry := range entries {
		text, into := "", any(&merges[rank])
		if entry[0] == '"' {
			into = &text
		}
		if err := json.Unmarshal(entry, into); err != nil {
			return nil, fmt.Errorf("entry %d: %w", rank, err)
		}
		if entry[0] == '"' {
			merges[rank] = strings.Split(text, " ")
		}
	}
	return merges, nil
}

// add takes the added tokens in, and makes the table to decode by. A token of the vocabulary keeps its id, whatever the
// entry says; others are numbered from the end of the vocabulary on, as the Rust library does it.
func (t *Tokenizer) add(tokens []addedToken) error {
	t.added.ids = make(map[string]uint32, len(tokens))
	t.isAdded = map[uint32]bool{}
	special := map[uint32]bool{}
	size, top := int64(len(t.model.vocab)), int64(-1)
	texts := make(map[uint32]string, len(t.model.vocab)+len(tokens))
	for name, id := range t.model.vocab {
		texts[id] = fromAlphabet(name)
	}
	for i, token := range tokens {
		if token.Content == "" {
			continue
		}
		if _, again := t.added.ids[token.Content]; again {
			return fmt.Errorf("entry %d: %.100q is listed twice", i, token.Content)
		}
		id := max(size, top+1)
		if known, ok := t.model.vocab[token.Content]; ok {
			id = int64(known)
		}
		if id != token.ID {
			return fmt.Errorf("entry %d: %.100q has id %d, but the vocabulary makes it %d", i, token.Content, token.ID, id)
		}
		top = max(top, id)
		t.added.ids[token.Content] = uint32(id)
		into, content := &t.added.raw, token.Content
		if token.Normalized {
			into, content = &t.added.normalized, t.normalize.apply(content)
		}
		if content != "" {
			into.add(content, uint32(id), token)
		}
		texts[uint32(id)] = fromAlphabet(content)
		t.isAdded[uint32(id)], special[uint32(id)] = true, token.Special
	}
	t.texts = make([]string, slices.Max(slices.Collect(maps.Keys(texts)))+1)
	t.special = make([]bool, len(t.texts))
	for id, text := range texts {
		t.texts[id], t.special[id] = text, special[id]
	}
	return nil
}

// fromAlphabet returns the bytes of a token by its name. A name with other characters is its own bytes.
func fromAlphabet(name string) string {
	text := make([]byte, 0, len(name))
	for _, r := range name {
		b, ok := byteOf[r]
		if !ok {
			return name
		}
		text = append(text, b)
	}
	return string(text)
}

// parseTemplate reads the special tokens before and after a prompt of one text.
func (t *Tokenizer) parseTemplate(raw json.RawMessage) error {
	parts, types, err := parts(raw)
	if err != nil {
		return err
	}
	for i, part := range parts {
		switch types[i] {
		case "ByteLevel": // changes offsets only
		case "TemplateProcessing":
			if err := t.parseSingle(part); err != nil {
				return err
			}
		default:
			return fmt.Errorf("type %q is not supported: want ByteLevel, TemplateProcessing or a Sequence of them", types[i])
		}
	}
	return nil
}

func (t *Tokenizer) parseSingle(raw json.RawMessage) error {
	var part struct {
		Single []struct {
			SpecialToken *struct {
				ID string `json:"id"`
			}
			Sequence *struct{}
		} `json:"single"`
		SpecialTokens map[string]struct {
			IDs []uint32 `json:"ids"`
		} `json:"special_tokens"`
	}
	if err := json.Unmarshal(raw, &part); err != nil {
		return err
	}
	into := &t.before
	for _, piece := range part.Single {
		switch {
		case piece.Sequence != nil:
			into = &t.after
		case piece.SpecialToken != nil:
			*into = append(*into, part.SpecialTokens[piece.SpecialToken.ID].IDs...)
		}
	}
	return nil
}
