package adopt

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/internal/tomlfile"
	"github.com/vllm-vcr/conformance/manifest"
)

// goldens plans what becomes of the goldens of lines that leave the window: they leave the registry, and their files stay
// unless they are to be pruned. Files are somebody's; a registry of a line that is not checked any more is in the way.
func (p *Plan) goldens(opt Options) error {
	path := opt.Tree.Manifest
	text, err := readFile(path)
	if err != nil || text == nil {
		return err
	}
	registry, findings := manifest.Parse(path, text)
	if tomlfile.HasErrors(findings) {
		return fmt.Errorf("%s cannot be used as it is: %s", path, findings[0])
	}
	p.registry = registry
	if len(p.Dropped) == 0 {
		return nil
	}
	var names []string
	for _, l := range p.lines {
		names = append(names, l.Name)
	}
	editor, err := manifest.NewEditor(path, text, names)
	if err != nil {
		return err
	}
	for _, line := range p.Dropped {
		if err := editor.RemoveLine(line); err != nil {
			return err
		}
	}
	p.registry = editor.Manifest()
	p.edit(path, text, editor.Bytes())
	return p.orphans(opt, registry)
}

// orphans are the files that nothing registers any more: by the rules of a registry, no two goldens share one.
func (p *Plan) orphans(opt Options, before *manifest.Manifest) error {
	var left, elsewhere []string
	count := 0
	for _, g := range before.Goldens {
		if !slices.Contains(p.Dropped, g.Line) {
			continue
		}
		count++
		path := g.Location("", opt.Tree.Goldens)
		data, err := os.ReadFile(path)
		switch {
		case err != nil || !filepath.IsLocal(filepath.FromSlash(g.BucketPath)):
			elsewhere = append(elsewhere, path)
		case opt.Prune:
			p.Files = append(p.Files, File{Path: path, Before: data})
		default:
			left = append(left, path)
		}
	}
	dropped := strings.Join(p.Dropped, ", ")
	p.note("%s: %d goldens of %s removed: the line is in the window no more", opt.Tree.Manifest, count, dropped)
	if len(left) > 0 {
		p.do("delete the files of goldens that are registered no more, or adopt with --prune: %s", strings.Join(left, " "))
	}
	if len(elsewhere) > 0 {
		p.do("goldens of %s that are kept elsewhere are registered no more: %s", dropped, strings.Join(elsewhere, " "))
	}
	return nil
}
