package adopt

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/tomlfile"
)

// DefaultWindow is how many stable lines a window keeps.
const DefaultWindow = 9

// window decides what the release makes of the window, and plans the edit of its file.
func (p *Plan) window(opt Options) error {
	path := opt.Tree.Compat
	before, findings := compat.Load(path)
	if tomlfile.HasErrors(findings) {
		return fmt.Errorf("%s cannot be used as it is: %s", path, findings[0])
	}
	text, _, err := compat.LoadText(path)
	if err != nil {
		return err
	}
	newest, _ := before.Default()
	p.before, p.findings.before = before, findings
	if p.lines, err = p.moved(before, opt); err != nil {
		return err
	}
	followed := p.nightly(text, newest)
	after, err := compat.Rewrite(path, text, p.lines)
	if err != nil {
		return err
	}
	if followed {
		after = bytes.Replace(after, saysNewest(newest.Name), saysNewest(p.Line), 1)
	}
	p.Window, p.findings.after = compat.Parse(path, after)
	p.edit(path, text, after)
	p.tellWindow()
	return nil
}

// moved are the lines of the window when the release is in it.
func (p *Plan) moved(before *compat.Matrix, opt Options) ([]compat.Line, error) {
	tag := p.version.Tag()
	change := compat.Change{Line: p.Line, Tag: &tag, Rev: &p.Rev, Add: true, Default: true}
	oldest := ""
	for _, l := range before.Lines {
		if l.IsTracker() {
			continue
		}
		oldest = l.Name
		stands, err := compat.ParseVersion(l.Tag)
		if err != nil {
			return nil, fmt.Errorf("%s:%d: line %s: %w", before.File, l.Pos, l.Name, err)
		}
		switch {
		case l.Name == p.Line && p.version.Compare(stands) < 0:
			return nil, fmt.Errorf("%s:%d: line %s stands for %s, which is newer than %s", before.File, l.Pos, l.Name, l.Tag, p.version)
		case l.Name == p.Line && l.Tag == tag && sameCommit(l.ProtocolRev, p.Rev):
			change.Rev = nil // it may be longer there
		case l.Name != p.Line && p.version.Compare(stands) < 0:
			change.Default = false
		}
	}
	lines, err := before.Set(change)
	if err != nil {
		return nil, err
	}
	lines = slices.DeleteFunc(lines, p.outlivedBy)
	if p.Dropped = fallen(lines, opt.Window); slices.Contains(p.Dropped, p.Line) {
		return nil, fmt.Errorf("%s is of a line before the oldest of %s, %s, and its window keeps %d: give it room with --window",
			p.version, before.File, oldest, opt.Window)
	}
	return slices.DeleteFunc(lines, func(l compat.Line) bool { return slices.Contains(p.Dropped, l.Name) }), nil
}

// outlivedBy tells whether a line is the tracker of a candidate that leads to this release, or to one before it.
func (p *Plan) outlivedBy(l compat.Line) bool {
	candidate, err := compat.ParseVersion(l.Tag)
	return l.Name == compat.RC && err == nil && candidate.Compare(p.version) < 0
}

// fallen are the oldest stable lines beyond the size of a window, which has the newest on top.
func fallen(lines []compat.Line, size int) []string {
	var stable []string
	for _, l := range lines {
		if !l.IsTracker() {
			stable = append(stable, l.Name)
		}
	}
	return stable[min(size, len(stable)):]
}

// saysNewest is the remark of a window whose nightly has the commit of the newest release.
func saysNewest(line string) []byte { return []byte("that of " + line + ", the newest release") }

// nightly has nightly follow the release, if the file says that it follows the newest.
func (p *Plan) nightly(text []byte, newest compat.Line) bool {
	now, _ := (&compat.Matrix{Lines: p.lines}).Default()
	at := slices.IndexFunc(p.lines, func(l compat.Line) bool { return l.Name == compat.Nightly })
	if at < 0 || now.Name != p.Line || !bytes.Contains(text, saysNewest(newest.Name)) ||
		!sameCommit(p.lines[at].ProtocolRev, newest.ProtocolRev) {
		return false
	}
	p.lines[at].ProtocolRev = now.ProtocolRev
	return true
}

// sameCommit reports whether two revisions, which may be abbreviated, are of one commit.
func sameCommit(a, b string) bool {
	n := min(len(a), len(b))
	return n > 0 && a[:n] == b[:n]
}

// tellWindow says what becomes of the window.
func (p *Plan) tellWindow() {
	for _, d := range compat.Diff(p.before.Lines, p.lines) {
		p.note("compat.toml: %s", d)
	}
	for _, d := range compat.Diff(p.before.Lines, p.lines) {
		if d.Moved() && d.Line() == p.Line && d.From.PatchRepo != "" {
			p.do("line %s takes its protocol from a fork at %s, which may not fit %s: look at patch_repo", p.Line, d.From.PatchRev, d.To.Tag)
		}
	}
}
