package compat

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/internal/base/tomlfile"
)

// Policy is what a project may decide about its matrix. The zero Policy is the
// default one.
type Policy struct {
	// MaxStable is the number of stable lines above which the oldest is reported
	// (C017). Zero means nine, which is what this project itself keeps.
	MaxStable int
	// Strict turns C021, goldens from another patch release than the line's tag,
	// from a warning into an error.
	Strict bool
}

// Load reads a compat.toml and checks it under the default [Policy]. The matrix is
// never nil; it is fit for use when no diagnostic is an error.
func Load(path string) (*Matrix, []Diagnostic) { return Policy{}.Load(path) }

// Parse is [Load] for text that is already in memory; name is the path that
// diagnostics mention.
func Parse(name string, data []byte) (*Matrix, []Diagnostic) { return Policy{}.Parse(name, data) }

// Load reads a compat.toml and checks it.
func (p Policy) Load(path string) (*Matrix, []Diagnostic) {
	return p.read(tomlfile.Load(path, codes()))
}

// Parse reads and checks the text of a compat.toml.
func (p Policy) Parse(name string, data []byte) (*Matrix, []Diagnostic) {
	return p.read(tomlfile.Parse(name, data, codes()))
}

func codes() tomlfile.Codes {
	return tomlfile.Codes{
		Unreadable: codeUnreadable, Syntax: codeSyntax, UnknownKey: codeUnknownKey, WrongType: codeWrongType,
	}
}

// entry is a line together with what the checks need to know of it.
type entry struct {
	Line
	table   *tomlfile.Table
	version Version // of the tag
	isValid bool    // a stable line whose name and tag agree, so it can be ordered
}

func (p Policy) read(doc *tomlfile.Document) (*Matrix, []Diagnostic) {
	m := &Matrix{File: doc.Name()}
	if doc.Root() == nil {
		return m, doc.Diagnostics()
	}
	var entries []entry
	for _, t := range doc.Root().Tables("vllm") {
		e := entry{Line: readLine(t), table: t}
		e.check()
		entries = append(entries, e)
		m.Lines = append(m.Lines, e.Line)
	}
	if len(entries) == 0 {
		doc.Report(codeNoEntries, Error, 1, "defines no [[vllm]] lines", "add an entry for each line of vLLM you support")
	}
	p.checkEntries(entries)
	return m, doc.Diagnostics()
}

func readLine(t *tomlfile.Table) Line {
	return Line{
		Name:              t.Required("line", codeMissingKey),
		Tag:               t.Required("tag", codeMissingKey),
		ProtocolRev:       t.Required("protocol_rev", codeMissingKey),
		PatchRepo:         t.String("patch_repo"),
		PatchRev:          t.String("patch_rev"),
		FidelityValidated: t.Bool("fidelity_validated"),
		Default:           t.Bool("default"),
		Pos:               t.Line(),
	}
}

const (
	minRev   = 7  // git's own shortest abbreviation
	quietRev = 9  // what a released wheel carries of its commit
	fullRev  = 40 // a whole commit
)

// check checks what an entry shows on its own.
func (e *entry) check() {
	e.checkRev("protocol_rev", e.ProtocolRev)
	e.checkRev("patch_rev", e.PatchRev)
	e.checkPatch()
	switch {
	case e.Name == "" || e.Tag == "": // reported as missing
	case e.IsTracker():
		e.checkTracker()
	default:
		e.checkStable()
	}
}

func (e *entry) fail(code, key, message, hint string) {
	e.table.Report(code, Error, key, message, hint)
}

func (e *entry) warn(code, key, message, hint string) {
	e.table.Report(code, Warning, key, message, hint)
}

// title names the entry in a message.
func (e *entry) title() string {
	if e.IsTracker() {
		return "tracker " + e.Name
	}
	return "line " + e.Name
}

func (e *entry) checkRev(key, rev string) {
	switch {
	case rev == "": // absent, or reported as missing
	case strings.Trim(rev, "0123456789abcdef") != "":
		e.fail(codeRev, key, fmt.Sprintf("%s %q is not a git commit", key, rev), "write 9 to 40 lowercase hexadecimal digits")
	case len(rev) < minRev || len(rev) > fullRev:
		e.fail(codeRev, key, fmt.Sprintf("%s has %d digits, a git commit has 7 to 40", key, len(rev)), "write 9 to 40 of them")
	case len(rev) < quietRev:
		e.warn(codeRev, key, fmt.Sprintf("%s has only %d digits, which may become ambiguous", key, len(rev)), "write 9 to 40 of them")
	}
}

func (e *entry) checkPatch() {
	if (e.PatchRepo == "") == (e.PatchRev == "") {
		return
	}
	have, missing := "patch_repo", "patch_rev"
	if e.PatchRepo == "" {
		have, missing = missing, have
	}
	e.fail(codeHalfPatch, have, fmt.Sprintf("%s has %s without %s", e.title(), have, missing), "a fork needs patch_repo and patch_rev")
}

func (e *entry) checkTracker() {
	const hint = "only a released line can promise anything"
	if e.Default {
		e.fail(codeTracker, "default", e.title()+" is the default", hint)
	}
	if e.FidelityValidated {
		e.fail(codeTracker, "fidelity_validated", e.title()+" is validated", hint)
	}
	if e.Name == Nightly {
		if e.Tag != Nightly {
			e.fail(codeNightlyTag, "tag", fmt.Sprintf("the tag of nightly is %q", e.Tag), `write tag = "nightly"`)
		}
		return
	}
	v, err := ParseVersion(e.Tag)
	if err != nil || !v.IsCandidate() {
		e.fail(codeRCTag, "tag", fmt.Sprintf("the tag of rc is %q, which is not a release candidate", e.Tag), "write a tag such as v0.34.0rc1")
		return
	}
	e.version = v
}

func (e *entry) checkStable() {
	name, ok := MinorLine(e.Name)
	if !ok || name != e.Name {
		hint := "write major.minor, such as 0.33, or a tracker: nightly, rc"
		if ok {
			hint = fmt.Sprintf("write line = %q", name)
		}
		e.fail(codeStableTag, "line", fmt.Sprintf("line %q is neither major.minor nor a tracker", e.Name), hint)
		return
	}
	v, err := ParseVersion(e.Tag)
	hint := fmt.Sprintf("write a release of the line, such as v%s.0", name)
	switch {
	case err != nil:
		e.fail(codeStableTag, "tag", "tag "+err.Error(), hint)
	case v.Line() != e.Name:
		e.fail(codeStableTag, "tag", fmt.Sprintf("tag %s is a release of line %s, not of %s", e.Tag, v.Line(), e.Name), hint)
	case v.IsCandidate():
		e.fail(codeStableTag, "tag", fmt.Sprintf("tag %s is a release candidate, line %s is stable", e.Tag, e.Name), "candidates belong to the tracker rc")
	default:
		e.version, e.isValid = v, true
	}
}

// defaultMaxStable is how many stable lines the default policy keeps.
const defaultMaxStable = 9

// checkEntries checks the entries against each other.
func (p Policy) checkEntries(entries []entry) {
	checkUnique(entries)
	checkDefault(entries)
	checkOrder(entries)
	checkStaleRC(entries)
	stable := newestFirst(entries)
	checkNewest(stable)
	checkGaps(stable)
	if limit := cmp.Or(p.MaxStable, defaultMaxStable); len(stable) > limit {
		oldest := stable[len(stable)-1]
		oldest.warn(codeTooMany, "line",
			fmt.Sprintf("the matrix has %d stable lines, the policy keeps %d; %s is the oldest", len(stable), limit, oldest.Name),
			"remove it, or raise the limit")
	}
}

// newestFirst returns the stable lines that can be ordered, each once, the newest
// first.
func newestFirst(entries []entry) []entry {
	stable := slices.DeleteFunc(slices.Clone(entries), func(e entry) bool { return !e.isValid })
	slices.SortStableFunc(stable, func(a, b entry) int { return b.version.Compare(a.version) })
	return slices.CompactFunc(stable, func(a, b entry) bool { return a.Name == b.Name })
}

func checkUnique(entries []entry) {
	lines, tags := make(map[string]int), make(map[string]int)
	for _, e := range entries {
		if first, ok := lines[e.Name]; ok && e.Name != "" {
			e.fail(codeSameLine, "line", fmt.Sprintf("line %s is listed twice, first at line %d of this file", e.Name, first), "keep one of the two")
		} else {
			lines[e.Name] = e.table.LineOf("line")
		}
		if first, ok := tags[e.Tag]; ok && e.Tag != "" {
			e.fail(codeSameTag, "tag", fmt.Sprintf("tag %s is listed twice, first at line %d of this file", e.Tag, first), "a tag must name one line")
		} else {
			tags[e.Tag] = e.table.LineOf("tag")
		}
	}
}

func checkDefault(entries []entry) {
	if len(entries) == 0 {
		return
	}
	var first *entry
	for i, e := range entries {
		switch {
		case !e.Default:
		case first == nil:
			first = &entries[i]
		default:
			e.fail(codeDefault, "default", fmt.Sprintf("exactly one line must be the default; %s already is, at line %d of this file",
				first.Name, first.table.LineOf("default")), "remove one of the two")
		}
	}
	if first == nil {
		candidates := append(newestFirst(entries), entries[0])
		candidates[0].fail(codeDefault, "line", "exactly one line must be the default, none is", "add default = true to the newest stable line")
	}
}

// checkNewest checks the default line against the newest one. A default that is a
// tracker, or whose tag is not valid, is reported elsewhere.
func checkNewest(stable []entry) {
	i := slices.IndexFunc(stable, func(e entry) bool { return e.Default })
	if i > 0 {
		stable[i].fail(codeNewest, "default", fmt.Sprintf("the default is %s, but the newest stable line is %s", stable[i].Name, stable[0].Name),
			"move default = true there")
	}
}

func checkOrder(entries []entry) {
	var last *entry // the last stable line before the current entry
	for i, e := range entries {
		switch {
		case e.IsTracker() && last != nil:
			e.warn(codeOrder, "line", fmt.Sprintf("tracker %s comes after the stable line %s", e.Name, last.Name), "put trackers first")
		case e.isValid:
			if last != nil && last.Name != e.Name && e.version.Compare(last.version) > 0 {
				e.warn(codeOrder, "line", fmt.Sprintf("line %s comes after the older %s", e.Name, last.Name), "put the newest line first")
			}
			last = &entries[i]
		}
	}
}

// checkStaleRC warns of a candidate whose release, or a later one, is out.
func checkStaleRC(entries []entry) {
	i := slices.IndexFunc(entries, func(e entry) bool { return e.isValid && e.Default })
	if i < 0 {
		return
	}
	for _, e := range entries {
		if e.version.IsCandidate() && e.version.Compare(entries[i].version) < 0 {
			e.warn(codeRCTag, "tag", fmt.Sprintf("stale rc: %s is older than the default, %s", e.Tag, entries[i].Tag),
				"move it to a newer candidate, or remove it")
		}
	}
}

func checkGaps(stable []entry) {
	for i := 1; i < len(stable); i++ {
		newer, older := stable[i-1].version, stable[i].version
		// What preceded the first line of a major version cannot be known.
		if newer.Major != older.Major || newer.Minor-older.Minor <= 1 {
			continue
		}
		stable[i].warn(codeGap, "line", fmt.Sprintf("the matrix has %s and %s, but nothing between them", newer.Line(), older.Line()),
			"add the missing lines, or drop the old one")
	}
}

// CodeNoProfile is the code of the rule that only another version of this project can
// satisfy.
const CodeNoProfile = "C020"

// The codes of the rules. They are stable: users filter by them.
const (
	codeUnreadable = "C001"
	codeSyntax     = "C002"
	codeNoEntries  = "C003"
	codeDefault    = "C004"
	codeSameLine   = "C005"
	codeSameTag    = "C006"
	codeHalfPatch  = "C007"
	codeUnknownKey = "C008"
	codeWrongType  = "C009"
	codeRev        = "C010"
	codeStableTag  = "C011"
	codeTracker    = "C012"
	codeNightlyTag = "C013"
	codeRCTag      = "C014"
	codeNewest     = "C015"
	codeOrder      = "C016"
	codeTooMany    = "C017"
	codeGap        = "C018"
	codeNoGoldens  = "C019"
	codeOtherPatch = "C021"
	codeMissingKey = "C022"
)
