package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// sourceOfFindings is what the code of the packages conformance and internal/check, and below them, says of the codes.
type sourceOfFindings struct {
	codes   []string            // the values of the constants of type Code
	named   map[string]string   // the same by the names of the constants
	formats map[string][]string // the messages that are made with a constant
}

// readSource parses the packages conformance and internal/check and what is below them, without the tests.
func readSource(t *testing.T) *sourceOfFindings {
	t.Helper()
	s := &sourceOfFindings{named: map[string]string{}, formats: map[string][]string{}}
	parse := func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.ValueSpec:
				s.constants(n)
			case *ast.CallExpr:
				s.message(n)
			}
			return true
		})
		return nil
	}
	for _, root := range []string{"../../conformance", "../../internal/check", "../../compat", "../../manifest", "../../internal/capture/target"} {
		require.NoError(t, filepath.WalkDir(root, parse))
	}
	return s
}

// ruleCode is the code of a rule of a configuration file.
var ruleCode = regexp.MustCompile(`^[CMK]\d{3}$`)

// constants takes the constants of type Code, which other packages qualify, and the codes of configuration files.
func (s *sourceOfFindings) constants(spec *ast.ValueSpec) {
	for i, value := range spec.Values {
		text, ok := value.(*ast.BasicLit)
		if !ok {
			continue
		}
		if code, _ := strconv.Unquote(text.Value); lastName(spec.Type) == "Code" || ruleCode.MatchString(code) {
			s.codes = append(s.codes, code)
			s.named[spec.Names[i].Name] = code
		}
	}
}

// message takes a call that is given a code and, behind it, a sentence.
func (s *sourceOfFindings) message(call *ast.CallExpr) {
	code := ""
	for _, arg := range call.Args {
		if name := lastName(arg); strings.HasPrefix(name, "Code") {
			code = name
		}
		text, ok := arg.(*ast.BasicLit)
		if !ok || code == "" || text.Kind != token.STRING {
			continue
		}
		if format, err := strconv.Unquote(text.Value); err == nil && strings.Contains(format, " ") {
			s.formats[code] = append(s.formats[code], format)
		}
	}
}

// lastName is the name that an expression is, without its package.
func lastName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	}
	return ""
}

// verb is one of a format.
var verb = regexp.MustCompile(`%[-+# 0-9.]*[a-zA-Z]`)

// made is a regular expression for what a format makes, and whether it is one that says
// enough to be compared with.
func made(format string) (*regexp.Regexp, bool) {
	parts := verb.Split(format, -1)
	letters := 0
	for i, part := range parts {
		letters += len(strings.TrimSpace(part))
		parts[i] = regexp.QuoteMeta(part)
	}
	return regexp.MustCompile("(?s)" + strings.Join(parts, ".*")), len(parts) > 1 && letters >= 8
}

// TestExamplesAreMessages: the example on a page is a message that the code makes.
func TestExamplesAreMessages(t *testing.T) {
	source := readSource(t)
	compared := 0
	for name, formats := range source.formats {
		page, known := explanationOf(source.named[name])
		if !known {
			continue // TestEveryCodeIsExplained says so
		}
		enough, fits := false, false
		for _, format := range formats {
			pattern, says := made(format)
			enough = enough || says
			fits = fits || says && pattern.MatchString(page.Text)
		}
		if !enough {
			continue
		}
		if compared++; !fits {
			t.Errorf("%s: the example is none of the messages %q", page.Code, formats)
		}
	}
	require.True(t, compared >= 40, "%d examples were compared: the messages were not found", compared)
}
