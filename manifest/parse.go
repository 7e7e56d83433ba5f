package manifest

import (
	"fmt"
	"math"
	"net/url"
	"slices"
	"strings"
	"unicode"

	"github.com/vllm-vcr/conformance/internal/base/lazyregexp"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/base/tomlfile"
)

// Policy is what a project may decide about its manifest. The zero Policy is the
// default one.
type Policy struct {
	// Strict turns M008, a golden of a line that is not supported any more, from a
	// warning into an error.
	Strict bool
}

// Load reads a manifest.toml and checks it. The manifest is never nil; it is fit
// for use when no diagnostic is an error.
func Load(path string) (*Manifest, []Diagnostic) {
	return read(tomlfile.Load(path, codes()))
}

// Parse is [Load] for text that is already in memory; name is the path that
// diagnostics mention.
func Parse(name string, data []byte) (*Manifest, []Diagnostic) {
	return read(tomlfile.Parse(name, data, codes()))
}

func codes() tomlfile.Codes {
	return tomlfile.Codes{
		Unreadable: codeUnreadable, Syntax: codeSyntax, UnknownKey: codeUnknownKey, WrongType: codeWrongType,
	}
}

// entry is a golden together with its table, which knows the places of its keys.
type entry struct {
	Golden
	table *tomlfile.Table
}

func read(doc *tomlfile.Document) (*Manifest, []Diagnostic) {
	m := &Manifest{File: doc.Name()}
	if doc.Root() == nil {
		return m, doc.Diagnostics()
	}
	tables := doc.Root().Tables(array)
	entries := slices.Grow([]entry(nil), len(tables))
	m.Goldens = slices.Grow(m.Goldens, len(tables))
	for _, t := range tables {
		e := entry{Golden: readGolden(t), table: t}
		e.check()
		entries = append(entries, e)
		m.Goldens = append(m.Goldens, e.Golden)
	}
	m.Blocks = readBlocks(doc)
	checkBlocks(m.Blocks, entries)
	checkDuplicates(entries)
	checkSharedHash(entries)
	checkRC(entries)
	return m, doc.Diagnostics()
}

func readGolden(t *tomlfile.Table) Golden {
	g := Golden{
		Line:            t.Required("line", codeMissingKey),
		ID:              t.String("id"),
		BucketPath:      t.Required("bucket_path", codeMissingKey),
		SHA256:          t.Required("sha256", codeMissingKey),
		ConfigHash:      t.Required("config_hash", codeMissingKey),
		Workload:        t.Required("workload", codeMissingKey),
		Role:            Role(t.Required("role", codeMissingKey)),
		Size:            t.Int("size"),
		Records:         int(t.Int("records")),
		Streams:         int(t.Int("streams")),
		Tokens:          int(t.Int("tokens")),
		TokensSHA256:    t.String("tokens_sha256"),
		VLLMVersion:     t.String("vllm_version"),
		EngineImage:     t.String("engine_image"),
		EngineBuild:     t.String("engine_build"),
		GPU:             t.String("gpu"),
		Model:           t.String("model"),
		Scenario:        t.String("scenario"),
		Seed:            readSeed(t),
		EngineConfig:    t.String("engine_config"),
		CapturedAt:      t.Time("captured_at"),
		CaptureRun:      t.String("capture_run"),
		RecorderVersion: t.String("recorder_version"),
		VersionID:       t.String("version_id"),
		Mirrors:         t.Strings("mirrors"),
		Visibility:      Visibility(t.String("visibility")),
		License:         t.String("license"),
		Notes:           t.String("notes"),
		Pos:             t.Line(),
	}
	if g.ID == "" {
		g.ID = g.Workload
	}
	return g
}

// readSeed distinguishes a seed of 0 from none.
func readSeed(t *tomlfile.Table) *int64 {
	seed := t.Int("seed")
	if !t.Has("seed") {
		return nil
	}
	return &seed
}

// check checks what an entry shows on its own.
func (e *entry) check() {
	e.checkDigest(codeSHA256, "sha256", e.SHA256, "sha256sum prints it for the stored file")
	e.checkDigest(codeConfigHash, "config_hash", e.ConfigHash, "the meta line of the trace has it")
	e.checkDigest(codeMalformed, "tokens_sha256", e.TokensSHA256, "`vllm-vcr conform` names it for a golden without one")
	e.checkRole()
	e.checkID()
	e.checkPaths()
	e.checkCounts()
	e.checkOrigin()
	if e.Role == Fidelity && e.TokensSHA256 == "" {
		e.warn(codeNoTokens, "role", "fidelity golden "+e.ID+" has no tokens_sha256, so its trace is its own witness",
			"leave it out and run `vllm-vcr conform`: it names the digest of what it replayed")
	}
}

func (e *entry) fail(code, key, message, hint string) {
	e.table.Report(code, Error, key, message, hint)
}

func (e *entry) warn(code, key, message, hint string) {
	e.table.Report(code, Warning, key, message, hint)
}

// checkDigest accepts an absent digest: the required ones are reported as missing.
func (e *entry) checkDigest(code, key, digest, hint string) {
	if digest != "" && !isDigest(digest) {
		e.fail(code, key, fmt.Sprintf("%s %q is not 64 lowercase hexadecimal digits", key, clip(digest)), hint)
	}
}

func isDigest(s string) bool {
	return len(s) == 64 && strings.Trim(s, "0123456789abcdef") == ""
}

// clip shortens a value for a message.
func clip(s string) string { return safetext.Clip(s, 80) }

func (e *entry) checkRole() {
	if e.Role == "" || slices.Contains(Roles(), e.Role) {
		return
	}
	var names []string
	for _, r := range Roles() {
		names = append(names, string(r))
	}
	hint := "write one of " + strings.Join(names, ", ")
	if near, ok := tomlfile.Nearest(string(e.Role), names); ok {
		hint = fmt.Sprintf("did you mean %q?", near)
	}
	e.fail(codeRole, "role", fmt.Sprintf("role %q is not known", clip(string(e.Role))), hint)
}

// checkID checks the name that reports and test names are made of. There a slash
// separates the golden from its line, and an asterisk is a pattern.
func (e *entry) checkID() {
	key := "id"
	if !e.table.Has(key) {
		key = "workload"
	}
	ok := !strings.ContainsFunc(e.ID, func(r rune) bool {
		return r > unicode.MaxASCII || !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("._-", r)
	})
	if !ok {
		e.fail(codeMalformed, key, fmt.Sprintf("%s %q cannot name a golden", key, clip(e.ID)), "use letters, digits, dots, underscores and hyphens")
	}
}

func (e *entry) checkPaths() {
	if e.BucketPath != "" {
		if defect := pathDefect(e.BucketPath); defect != "" {
			e.fail(codePath, "bucket_path", fmt.Sprintf("bucket_path %q %s", shown(e.BucketPath), defect), "")
		}
	}
	for _, mirror := range e.Mirrors {
		defect := pathDefect(mirror)
		if !strings.Contains(mirror, "://") {
			defect = "has no scheme (s3, hf, https or file)"
		}
		if defect != "" {
			e.fail(codePath, "mirrors", fmt.Sprintf("mirror %q %s", shown(mirror), defect), "")
		}
	}
}

// Parts of a location that may hold secrets: who asks, and a query, as a signed URL has one.
var (
	userinfo = lazyregexp.New(`(://)[^/@]*@`)
	query    = lazyregexp.New(`\?.+`)
)

// shown is a location as messages show it.
func shown(location string) string {
	return clip(query().ReplaceAllString(userinfo().ReplaceAllString(location, "$1"), "?…"))
}

// pathDefect says what is wrong with the path or location of a golden; it
// returns an empty string when nothing is.
func pathDefect(path string) string {
	scheme, rest, hasScheme := strings.Cut(path, "://")
	if !hasScheme {
		rest = path
	}
	switch {
	case hasScheme && !slices.Contains([]string{"s3", "hf", "https", "file"}, strings.ToLower(scheme)):
		return "has an unknown scheme; known are s3, hf, https and file"
	case strings.ContainsFunc(rest, unicode.IsControl):
		return "contains a control character"
	case strings.ContainsAny(rest, `\?#`):
		return `contains one of \ ? #, which not every store reads alike`
	case !hasScheme && strings.HasPrefix(rest, "/"):
		return "is absolute; make it relative to the bucket, or write file://"
	case hasScheme && strings.EqualFold(scheme, "file") != strings.HasPrefix(rest, "/"):
		return "is no complete location, such as s3://bucket/key or file:///path"
	case slices.ContainsFunc(strings.Split(strings.TrimPrefix(rest, "/"), "/"), isDots):
		return "has an empty, . or .. segment"
	case !strings.HasSuffix(rest, ".jsonl") && !strings.HasSuffix(rest, ".jsonl.gz"):
		return "does not end in .jsonl or .jsonl.gz"
	}
	return ""
}

func isDots(segment string) bool { return segment == "" || segment == "." || segment == ".." }

func (e *entry) checkCounts() {
	for _, key := range []string{"size", "records", "streams", "tokens"} {
		if n := e.table.Int(key); n < 0 || n > math.MaxInt32 && key != "size" {
			e.fail(codeMalformed, key, fmt.Sprintf("%s cannot be %d", key, n), "")
		}
	}
	if e.Records > 0 && e.Streams > e.Records {
		e.fail(codeMalformed, "streams", fmt.Sprintf("%d streams are more than %d records", e.Streams, e.Records), "")
	}
}

func (e *entry) checkOrigin() {
	if image, digest, _ := strings.Cut(e.EngineImage, "@sha256:"); e.EngineImage != "" && (image == "" || !isDigest(digest)) {
		e.fail(codeMalformed, "engine_image", fmt.Sprintf("engine_image %q does not end in @sha256: and a digest", clip(e.EngineImage)),
			"a tag can be moved, a digest cannot")
	}
	run, err := url.Parse(e.CaptureRun)
	if e.CaptureRun != "" && (err != nil || run.Host == "" || run.Scheme != "https" && run.Scheme != "http") {
		e.fail(codeMalformed, "capture_run", fmt.Sprintf("capture_run %q is not an http or https URL", clip(e.CaptureRun)), "")
	}
	if v := e.Visibility; v != "" && v != Public && v != Private {
		e.fail(codeMalformed, "visibility", fmt.Sprintf("visibility %q is neither public nor private", clip(string(v))), "")
	}
}

// checkDuplicates checks that names and contents stand for each other.
func checkDuplicates(entries []entry) {
	ids, digests, paths := make(map[string]*entry), make(map[string]*entry), make(map[string]*entry)
	for i := range entries {
		e := &entries[i]
		name := e.Line + "/" + e.ID
		if first, ok := ids[name]; ok && e.Line != "" && e.ID != "" {
			key := "id"
			if !e.table.Has(key) {
				key = "workload"
			}
			e.fail(codeSameID, key, fmt.Sprintf("line %s has two goldens named %s, the first at line %d of this file", e.Line, e.ID, first.Pos),
				"give one of them an id of its own")
		}
		if first, ok := digests[e.SHA256]; ok && isDigest(e.SHA256) {
			e.fail(codeSameBytes, "sha256", fmt.Sprintf("the same bytes are registered twice, first at line %d of this file", first.Pos),
				"keep one of the two; other locations of it are mirrors")
		}
		if first, ok := paths[e.BucketPath]; ok && e.BucketPath != "" && e.SHA256 != first.SHA256 {
			e.fail(codeSamePath, "bucket_path", fmt.Sprintf("bucket_path has another sha256 at line %d of this file", first.table.LineOf("bucket_path")),
				"one object cannot be both")
		}
		remember(ids, name, e)
		remember(digests, e.SHA256, e)
		remember(paths, e.BucketPath, e)
	}
}

// remember keeps the first entry of a key.
func remember(seen map[string]*entry, key string, e *entry) {
	if _, ok := seen[key]; !ok {
		seen[key] = e
	}
}

// checkSharedHash catches a fingerprint copied from a capture with prefix cache to
// one without, or the other way round.
func checkSharedHash(entries []entry) {
	cached := make(map[string]*entry)
	for i := range entries {
		if e := &entries[i]; !e.isNoCache() {
			remember(cached, e.ConfigHash, e)
		}
	}
	for _, e := range entries {
		if other, ok := cached[e.ConfigHash]; ok && e.isNoCache() && isDigest(e.ConfigHash) {
			e.fail(codeSharedHash, "config_hash", fmt.Sprintf("golden %s ran without prefix cache, but has the config_hash of %s, which ran with it (line %d of this file)",
				e.ID, other.ID, other.Pos), "take config_hash from the meta line of its trace")
		}
	}
}

// checkRC warns once: what a candidate did is of no use when the next one is out.
func checkRC(entries []entry) {
	for _, e := range entries {
		if e.Line == "rc" {
			e.warn(codeRC, "line", "the tracker rc has goldens, which every new candidate makes obsolete", "register them when the release is out")
			return
		}
	}
}

// readBlocks returns the blocks of the file and reports markers that do not pair.
func readBlocks(doc *tomlfile.Document) []Block {
	var blocks []Block
	open := Block{}
	report := func(line int, message, hint string) {
		doc.Report(codeBlock, Error, line, message, hint)
	}
	for _, c := range doc.Comments() {
		word, label := marker(c.Text)
		switch {
		case word == "BEGIN" && open.Label != "":
			report(c.Line, "a block begins inside the block of "+open.Label, "add \"# END "+open.Label+" GOLDENS\" before it")
			open = Block{Label: label, Begin: c.Line}
		case word == "BEGIN":
			open = Block{Label: label, Begin: c.Line}
		case word == "END" && open.Label == "":
			report(c.Line, "a block ends that has not begun", "add \"# BEGIN "+label+" GOLDENS\", or remove this line")
		case word == "END" && open.Label != label:
			report(c.Line, "the block of "+open.Label+" ends as "+label, "both markers name the same line")
			open = Block{}
		case word == "END":
			open.End = c.Line
			blocks = append(blocks, open)
			open = Block{}
		}
	}
	if open.Label != "" {
		report(open.Begin, "the block of "+open.Label+" does not end", "add \"# END "+open.Label+" GOLDENS\" after its last entry")
	}
	return unique(blocks, report)
}

// unique reports the second block of a label: an editor could not know which of
// the two to rewrite.
func unique(blocks []Block, report func(line int, message, hint string)) []Block {
	seen := make(map[string]bool)
	var kept []Block
	for _, b := range blocks {
		if seen[b.Label] {
			report(b.Begin, "a second block of "+b.Label, "move its entries to the first")
			continue
		}
		seen[b.Label] = true
		kept = append(kept, b)
	}
	return kept
}

// marker reads "BEGIN x GOLDENS" or "END x GOLDENS"; other comments give nothing.
func marker(comment string) (word, label string) {
	fields := strings.Fields(comment)
	if len(fields) != 3 || fields[2] != "GOLDENS" || fields[0] != "BEGIN" && fields[0] != "END" {
		return "", ""
	}
	return fields[0], fields[1]
}

// checkBlocks warns of goldens that stand where the next capture of their line
// would not see them, or where that of another line would remove them.
func checkBlocks(blocks []Block, entries []entry) {
	for _, e := range entries {
		label := strings.ToUpper(e.Line)
		own := slices.IndexFunc(blocks, func(b Block) bool { return b.Label == label })
		around := slices.IndexFunc(blocks, func(b Block) bool { return b.holds(e.Pos) })
		switch {
		case own == around || e.Line == "":
		case around < 0:
			e.warn(codeOutside, "line", fmt.Sprintf("a golden of line %s stands outside of the block of %s, at lines %d to %d",
				e.Line, label, blocks[own].Begin, blocks[own].End), "move it there")
		default:
			e.warn(codeOutside, "line", fmt.Sprintf("a golden of line %s stands in the block of %s", e.Line, blocks[around].Label),
				"move it to the block of its line")
		}
	}
}

// The codes of the rules. They are stable: users filter by them.
const (
	codeUnreadable = "M001"
	codeSyntax     = "M002"
	codeUnknownKey = "M003"
	codeMissingKey = "M004"
	codeSHA256     = "M005"
	codeConfigHash = "M006"
	codeRole       = "M007"
	codeOrphan     = "M008"
	codeSameID     = "M009"
	codeSameBytes  = "M010"
	codeSamePath   = "M011"
	codePath       = "M012"
	codePathTag    = "M013"
	codeBlock      = "M014"
	codeOutside    = "M015"
	codeRecomputed = "M016"
	codeOneSeed    = "M017"
	codeSharedHash = "M018"
	codeRC         = "M019"
	codeNoTokens   = "M020"
	codeWrongType  = "M021"
	codeMalformed  = "M022"
)

// isNoCache reports whether the engine ran without its prefix cache.
func (g Golden) isNoCache() bool {
	if g.Scenario != "" {
		return g.Scenario == "nocache"
	}
	return strings.Contains("-"+g.Workload+"-", "-nocache-")
}
