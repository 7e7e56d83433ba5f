package page

import (
	"bufio"
	"embed"
	"html/template"
	"io"
	"io/fs"
	"sync"

	"github.com/vllm-vcr/conformance/internal/base/safetext"
)

//go:embed base.html base.css
var base embed.FS

// Template is a page in the look of all pages.
type Template struct {
	parse func() *template.Template
}

// NewTemplate returns the page whose templates are files of a folder, such as "*.html". They define "title" and "main", and
// may define "style" and "script". Besides functions, they can call css and js, which insert a file of the folder, and line,
// which makes one line of a text of others. The files are parsed when the page is first written; a mistake in one panics.
func NewTemplate(files fs.FS, functions template.FuncMap, patterns ...string) *Template {
	return &Template{sync.OnceValue(func() *template.Template {
		read := func(files fs.FS, name string) string {
			text, err := fs.ReadFile(files, name)
			if err != nil {
				panic(err)
			}
			return string(text)
		}
		t := template.New("base.html").Funcs(functions).Funcs(template.FuncMap{
			"base": func() template.CSS { return template.CSS(read(base, "base.css")) },
			"css":  func(name string) template.CSS { return template.CSS(read(files, name)) },
			"js":   func(name string) template.JS { return template.JS(read(files, name)) },
			"line": safetext.Line,
		})
		return template.Must(template.Must(t.ParseFS(base, "base.html")).ParseFS(files, patterns...))
	})}
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
