// Package page has what all HTML pages have in common: their frame, base.html, and their look, base.css. A page is a folder
// with templates of html/template, a style sheet and a script. It loads nothing.
package page

import (
	"bufio"
	"embed"
	"html/template"
	"io"
	"path"
	"sync"

	"github.com/vllm-vcr/conformance/internal/base/safetext"
)

//go:embed base.html base.css
var base embed.FS

// Template is a page in the look of all pages.
type Template struct {
	parse func() *template.Template
}

// NewTemplate returns the page whose templates are embedded files, such as "page/*.html". They define "title" and "main", and
// may define "style" and "script". Besides functions, they can call css and js, which insert a file of the same folder, and
// line, which makes one line of a text of others. The files are parsed when the page is first written; a mistake in one panics.
func NewTemplate(files embed.FS, functions template.FuncMap, patterns ...string) *Template {
	folder := path.Dir(patterns[0])
	return &Template{sync.OnceValue(func() *template.Template {
		t := template.New("base.html").Funcs(functions).Funcs(template.FuncMap{
			"base": func() template.CSS { return template.CSS(read(base, "base.css")) },
			"css":  func(name string) template.CSS { return template.CSS(read(files, path.Join(folder, name))) },
			"js":   func(name string) template.JS { return template.JS(read(files, path.Join(folder, name))) },
			"line": safetext.Line,
		})
		return template.Must(template.Must(t.ParseFS(base, "base.html")).ParseFS(files, patterns...))
	})}
}

func read(files embed.FS, name string) string {
	text, err := files.ReadFile(name)
	if err != nil {
		panic(err)
	}
	return string(text)
}

// Write writes the page.
func (t *Template) Write(w io.Writer, data any) error { return t.WritePart(w, "base.html", data) }

// WritePart writes one of the templates alone.
func (t *Template) WritePart(w io.Writer, name string, data any) error {
	b := bufio.NewWriter(w)
	if err := t.parse().ExecuteTemplate(b, name, data); err != nil {
		return err
	}
	return b.Flush()
}
