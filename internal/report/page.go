package report

import (
	"bufio"
	"embed"
	"html/template"
	"io"
	"path"
	"sync"

	"github.com/vllm-vcr/conformance/internal/base/safetext"
)

//go:embed page
var base embed.FS

// PageTemplate is a page in the look of all HTML pages: their frame is base.html and their style base.css. A page is a folder
// with templates of html/template, a style sheet and a script. It loads nothing.
type PageTemplate struct {
	parse func() *template.Template
}

// NewPageTemplate returns the page whose templates are embedded files, such as "page/*.html". They define "title" and "main", and
// may define "style" and "script". Besides functions, they can call css and js, which insert a file of the same folder, and
// line, which makes one line of a text of others. The files are parsed when the page is first written; a mistake in one panics.
func NewPageTemplate(files embed.FS, functions template.FuncMap, patterns ...string) *PageTemplate {
	folder := path.Dir(patterns[0])
	return &PageTemplate{sync.OnceValue(func() *template.Template {
		t := template.New("base.html").Funcs(functions).Funcs(template.FuncMap{
			"base": func() template.CSS { return template.CSS(read(base, "page/base.css")) },
			"css":  func(name string) template.CSS { return template.CSS(read(files, path.Join(folder, name))) },
			"js":   func(name string) template.JS { return template.JS(read(files, path.Join(folder, name))) },
			"line": safetext.Line,
		})
		return template.Must(template.Must(t.ParseFS(base, "page/base.html")).ParseFS(files, patterns...))
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
func (t *PageTemplate) Write(w io.Writer, data any) error { return t.WritePart(w, "base.html", data) }

// WritePart writes one of the templates alone.
func (t *PageTemplate) WritePart(w io.Writer, name string, data any) error {
	b := bufio.NewWriter(w)
	if err := t.parse().ExecuteTemplate(b, name, data); err != nil {
		return err
	}
	return b.Flush()
}
