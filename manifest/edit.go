package manifest

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/internal/base/tomlfile"
)

// array is the name of the tables of the manifest.
const array = "golden"

// Editor changes the text of a manifest. Comments, keys of the user's own and
// every byte that a change is not about stay as they are. A change that the rules
// of the manifest (see [Rules]) would call an error is refused, and so is any change
// of a file that has errors already, blocks that do not pair among them. A refusal
// leaves the text as it was.
type Editor struct {
	name  string
	lines []string // names of the matrix's lines
	text  *tomlfile.Editor
}

// NewEditor reads the text of a manifest. Name is the path that errors mention.
// Lines are the names of the lines of compat.toml in its order, which is that of
// the blocks: a new block is put before that of the first line that comes later.
func NewEditor(name string, data []byte, lines []string) (*Editor, error) {
	_, diagnostics := Parse(name, data)
	if err := firstError(diagnostics); err != nil {
		return nil, err
	}
	text, err := tomlfile.NewEditor(name, data, isMarker)
	if err != nil {
		return nil, err
	}
	return &Editor{name: name, lines: lines, text: text}, nil
}

// Bytes returns the text.
func (e *Editor) Bytes() []byte { return e.text.Bytes() }

// Manifest returns the manifest that the text is.
func (e *Editor) Manifest() *Manifest {
	m, _ := Parse(e.name, e.text.Bytes())
	return m
}

func firstError(diagnostics []Diagnostic) error {
	for _, f := range diagnostics {
		if f.Severity == Error {
			return fmt.Errorf("%s", f)
		}
	}
	return nil
}

func isMarker(comment string) bool {
	word, _ := marker(comment)
	return word != ""
}

// Put registers a golden: it replaces that of the same line and id where it is,
// key by key, or adds one at the end of the line's block. A block that is missing is
// made. Goldens of the line that stand outside its block are moved to its end. All
// other goldens stay. Putting the same golden again changes nothing.
func (e *Editor) Put(g Golden) error {
	if g.Line == "" || g.ID == "" {
		return fmt.Errorf("%s: a golden without line or id cannot be registered", e.name)
	}
	wanted := e.Manifest().Goldens
	at := find(wanted, g.Line, g.ID)
	if at < 0 {
		wanted = append(wanted, g)
	} else {
		wanted[at] = g
	}
	return e.change(wanted, func() error {
		if err := e.gather(g.Line); err != nil {
			return err
		}
		return e.put(g)
	})
}

// Remove takes a golden out of the manifest, with the comments that are about it.
// The block of its line stays, even if it is empty then.
func (e *Editor) Remove(line, id string) error {
	goldens := e.Manifest().Goldens
	at := find(goldens, line, id)
	if at < 0 {
		return fmt.Errorf("%s: has no golden %s/%s", e.name, line, id)
	}
	return e.change(slices.Delete(slices.Clone(goldens), at, at+1), func() error { return e.text.Remove(array, at) })
}

func find(goldens []Golden, line, id string) int {
	return slices.IndexFunc(goldens, func(g Golden) bool { return g.Line == line && g.ID == id })
}

// change makes a change, and takes it back unless it leads to the wanted goldens,
// in whatever order, and to a file without errors.
func (e *Editor) change(wanted []Golden, make func() error) error {
	before := *e.text
	err := make()
	if err == nil {
		err = e.verify(wanted)
	}
	if err != nil {
		*e.text = before
	}
	return err
}

func (e *Editor) verify(wanted []Golden) error {
	m, diagnostics := Parse(e.name, e.text.Bytes())
	if err := firstError(diagnostics); err != nil {
		return fmt.Errorf("the change would break a rule: %w", err)
	}
	if !reflect.DeepEqual(byName(m.Goldens), byName(wanted)) || len(m.Goldens) != len(wanted) {
		return fmt.Errorf("%s: the edit would not result in the intended goldens: edit the file by hand", e.name)
	}
	return nil
}

// byName indexes goldens for a comparison that their places do not matter to.
func byName(goldens []Golden) map[[2]string]Golden {
	all := make(map[[2]string]Golden)
	for _, g := range goldens {
		name := [2]string{g.Line, g.ID}
		g.Pos, g.CapturedAt = 0, g.CapturedAt.UTC()
		all[name] = g
	}
	return all
}

// gather moves the goldens of a line into its block, which it makes if there is
// none.
func (e *Editor) gather(line string) error {
	if _, ok := e.block(line); !ok {
		if err := e.addBlock(line); err != nil {
			return err
		}
	}
	for {
		block, ok := e.block(line)
		if !ok {
			return fmt.Errorf("%s: %q cannot name a block: want the name of a line, such as 0.33", e.name, line)
		}
		at := slices.IndexFunc(e.Manifest().Goldens, func(g Golden) bool { return g.Line == line && !block.holds(g.Pos) })
		if at < 0 {
			return nil
		}
		if err := e.text.Move(array, at, e.lastWritten(block)); err != nil {
			return err
		}
	}
}

func (e *Editor) block(line string) (Block, bool) {
	for _, b := range e.Manifest().Blocks {
		if b.Label == strings.ToUpper(line) {
			return b, true
		}
	}
	return Block{}, false
}

// lastWritten is the last line of a block that is not blank; at least that of its
// first marker.
func (e *Editor) lastWritten(b Block) int {
	lines := strings.Split(string(e.text.Bytes()), "\n")
	last := b.End - 1
	for last > b.Begin && strings.TrimSpace(lines[last-1]) == "" {
		last--
	}
	return last
}

// addBlock makes an empty block at the place of its line.
func (e *Editor) addBlock(line string) error {
	label := strings.ToUpper(line)
	at := strings.Count(strings.TrimRight(string(e.text.Bytes()), "\r\n\t "), "\n") + 1
	for _, b := range slices.Backward(e.Manifest().Blocks) {
		if e.rank(b.Label) > e.rank(label) {
			at = e.above(b.Begin)
		}
	}
	if len(strings.TrimSpace(string(e.text.Bytes()))) == 0 {
		at = 0
	}
	return e.text.InsertComments(at, "BEGIN "+label+" GOLDENS", "END "+label+" GOLDENS")
}

// rank is the place of a block in the order of the matrix; labels that the matrix
// does not have come last.
func (e *Editor) rank(label string) int {
	at := slices.IndexFunc(e.lines, func(line string) bool { return strings.ToUpper(line) == label })
	if at < 0 {
		return len(e.lines)
	}
	return at
}

// above is the last line that is not about a block: comments directly above its
// marker are.
func (e *Editor) above(begin int) int {
	comments := e.text.Comments()
	at := begin
	for _, c := range slices.Backward(comments) {
		if c.Line == at-1 && !isMarker(c.Text) {
			at = c.Line
		}
	}
	return at - 1
}

// put sets the keys of a golden whose block there is.
func (e *Editor) put(g Golden) error {
	at := find(e.Manifest().Goldens, g.Line, g.ID)
	if at < 0 {
		block, _ := e.block(g.Line)
		last := e.lastWritten(block)
		if err := e.text.Insert(array, last, "line", g.Line); err != nil {
			return err
		}
		at = slices.IndexFunc(e.text.Lines(array), func(header int) bool { return header > last })
	}
	old := e.Manifest().Goldens[at].Pairs()
	for i, p := range g.Pairs() {
		// Without an id the workload is the name, so that an id which is the same may still have to be written.
		if reflect.DeepEqual(p, old[i]) && (p.Key != "id" || g.ID == g.Workload) {
			continue
		}
		var err error
		if p.Value == nil {
			err = e.text.Unset(array, at, p.Key)
		} else {
			err = e.text.Set(array, at, p.Key, p.Value, keys())
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Pair is a key of a golden in the manifest, and its value; nil if the golden does not have it.
type Pair struct {
	Key   string
	Value any // string, int64, bool, time.Time or []string
}

// Pairs lists the keys of a golden in the order they are written in.
func (g Golden) Pairs() []Pair {
	return []Pair{
		{"line", given(g.Line)},
		{"id", given(g.ID)},
		{"bucket_path", given(g.BucketPath)},
		{"sha256", given(g.SHA256)},
		{"config_hash", given(g.ConfigHash)},
		{"workload", given(g.Workload)},
		{"role", given(string(g.Role))},
		{"size", given(int64(g.Size))},
		{"records", given(int64(g.Records))},
		{"streams", given(int64(g.Streams))},
		{"tokens", given(int64(g.Tokens))},
		{"tokens_sha256", given(g.TokensSHA256)},
		{"vllm_version", given(g.VLLMVersion)},
		{"engine_image", given(g.EngineImage)},
		{"engine_build", given(g.EngineBuild)},
		{"gpu", given(g.GPU)},
		{"model", given(g.Model)},
		{"scenario", given(g.Scenario)},
		{"seed", given(g.Seed)},
		{"engine_config", given(g.EngineConfig)},
		{"captured_at", given(g.CapturedAt.UTC())},
		{"capture_run", given(g.CaptureRun)},
		{"recorder_version", given(g.RecorderVersion)},
		{"version_id", given(g.VersionID)},
		{"mirrors", given(g.Mirrors)},
		{"visibility", given(string(g.Visibility))},
		{"license", given(g.License)},
		{"notes", given(g.Notes)},
	}
}

// keys are the keys of a golden in their order.
func keys() []string {
	var names []string
	for _, p := range (Golden{}).Pairs() {
		names = append(names, p.Key)
	}
	return names
}

// given is a value as it is written; nil if there is none.
func given(value any) any {
	v := reflect.ValueOf(value)
	switch {
	case v.IsZero() || v.Kind() == reflect.Slice && v.Len() == 0:
		return nil
	case v.Kind() == reflect.Pointer:
		return v.Elem().Interface()
	}
	return value
}

// RemoveLine takes all goldens of a line out of the manifest, with the comments
// that are about them, and the block of the line with all that is in it. A
// line that the manifest does not have changes nothing.
func (e *Editor) RemoveLine(line string) error {
	ofLine := func(g Golden) bool { return g.Line == line }
	wanted := slices.DeleteFunc(slices.Clone(e.Manifest().Goldens), ofLine)
	return e.change(wanted, func() error {
		for {
			at := slices.IndexFunc(e.Manifest().Goldens, ofLine)
			if at < 0 {
				return e.removeBlock(line)
			}
			if err := e.text.Remove(array, at); err != nil {
				return err
			}
		}
	})
}

// removeBlock takes out the markers of a line, which has no goldens any more, and one of the blank lines around them.
func (e *Editor) removeBlock(line string) error {
	block, ok := e.block(line)
	if !ok {
		return nil
	}
	lines := strings.SplitAfter(string(e.text.Bytes()), "\n")
	first, last := block.Begin-1, block.End
	blank := func(i int) bool { return i >= 0 && i < len(lines) && strings.TrimSpace(lines[i]) == "" }
	if blank(first-1) && (blank(last) || last == len(lines)) {
		first--
	}
	text, err := tomlfile.NewEditor(e.name, []byte(strings.Join(slices.Delete(lines, first, last), "")), isMarker)
	if err == nil {
		e.text = text
	}
	return err
}
