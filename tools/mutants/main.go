// Command mutants switches off each rule of the checks in turn, and demands that a test or a fault of the self-test then fails.
//
//	cd tools && go run ./mutants [-list] [-run REGEXP] [-with REGEXP] [-keep FOLDER] ..
//
// A rule is a statement that reports a failure, such as e.fail(…) or f.Fail(…), in internal/check or a package below it. Two
// mutants are made of each: in one the statement is left out, in the other the condition around it is negated. All are compiled
// into the same programs, and the variable MUTANT chooses one, so nothing is compiled twice.
//
// First each case of the self-test, and each test of the packages, runs alone without a mutant, which shows the mutants that it
// comes to. A mutant is then tried with those cases and tests, first with the faults of rules and then with those that come to the
// fewest, until one fails. It survives if none does.
package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

func main() {
	list := flag.Bool("list", false, "list the mutants")
	only := flag.String("run", "", "try only mutants whose place and kind, such as \"internal/check/live/stop.go:40 removed\", match this regular expression")
	with := flag.String("with", "", "use only cases of the self-test and tests whose names match this regular expression")
	keep := flag.String("keep", "", "folder for the programs and for what each case comes to, which a later run uses again")
	flag.Parse()
	if err := run(cmp.Or(flag.Arg(0), "."), *list, *only, *with, *keep); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

// reports are the names of the functions that report a failure.
var reports = []string{"fail", "Fail", "end", "envelope", "complain", "unsaid", "Stray", "fails", "Ends"}

// mutant is one change of the source.
type mutant struct {
	number int // from 1
	place  string
	kind   string // removed or negated
	text   string // the first line of the statement
}

// source is a file with the changes of all its mutants, each of which MUTANT switches on.
type source struct {
	path    string
	text    []byte
	inserts map[int]string // text to insert, by offset
}

// helper is the package that the changed files ask which mutant is on. It notes the mutants that are come to in a file.
const helper = `package mutants

import (
	"os"
	"strconv"
	"sync"
)

var (
	on, _ = strconv.Atoi(os.Getenv("MUTANT"))
	seen  sync.Map
	log   = open()
)

func open() *os.File {
	f, _ := os.OpenFile(os.Getenv("MUTANTS_SEEN"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	return f
}

func On(n int) bool {
	if log != nil {
		if _, again := seen.LoadOrStore(n, true); !again {
			log.WriteString(strconv.Itoa(n) + "\n")
		}
	}
	return n == on
}

func Not(n int, holds bool) bool { return holds != On(n) }
`

func run(root string, list bool, only, with, keep string) error {
	root, err := filepath.Abs(root)
	if err != nil {
		return err
	}
	chosen, err := regexp.Compile(only)
	if err != nil {
		return err
	}
	trials, err := regexp.Compile(with)
	if err != nil {
		return err
	}
	mutants, sources, err := findMutants(root)
	if err != nil {
		return err
	}
	if list {
		for _, m := range mutants {
			fmt.Println(m.number, m.place, m.kind, m.text)
		}
		return nil
	}
	if keep == "" {
		if keep, err = os.MkdirTemp("", "mutants-"); err != nil {
			return err
		}
		defer os.RemoveAll(keep)
	}
	l := &lab{root: root, dir: keep, with: trials}
	if err := l.build(sources); err != nil {
		return err
	}
	if err := l.record(); err != nil {
		return err
	}
	mutants = slices.DeleteFunc(mutants, func(m mutant) bool { return !chosen.MatchString(m.place + " " + m.kind) })
	var killed atomic.Int32
	var together errgroup.Group
	together.SetLimit(2 * runtime.NumCPU()) // trials mostly wait
	for _, m := range mutants {
		together.Go(func() error {
			if by := l.killer(m); by != "" {
				killed.Add(1)
				fmt.Printf("killed    %s %s by %s\n", m.place, m.kind, by)
			} else {
				fmt.Printf("SURVIVED  %s %s: %s\n", m.place, m.kind, m.text)
			}
			return nil
		})
	}
	_ = together.Wait()
	fmt.Printf("%d of %d mutants killed: %.1f %%\n", killed.Load(), len(mutants), 100*float64(killed.Load())/float64(max(len(mutants), 1)))
	return nil
}

// findMutants finds the mutants of the checks.
func findMutants(root string) (mutants []mutant, sources []source, err error) {
	err = filepath.WalkDir(filepath.Join(root, "internal/check"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || strings.Contains(path, "/httpdiff/") {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, path, text, 0)
		if err != nil {
			return err
		}
		s := source{path: path, text: text, inserts: map[int]string{}}
		name, _ := filepath.Rel(root, path)
		add := func(at ast.Node, kind string, of ast.Node, before, after string) {
			position := fset.Position(of.Pos())
			line, _, _ := strings.Cut(string(text[position.Offset:]), "\n")
			m := mutant{len(mutants) + 1, fmt.Sprintf("%s:%d", name, position.Line), kind, line}
			mutants = append(mutants, m)
			from, to := fset.Position(at.Pos()).Offset, fset.Position(at.End()).Offset
			s.inserts[from] += fmt.Sprintf(before, m.number)
			s.inserts[to] = after + s.inserts[to]
		}
		negated := map[ast.Node]bool{}
		var around []ast.Node
		ast.Inspect(file, func(n ast.Node) bool {
			if n == nil {
				around = around[:len(around)-1]
				return true
			}
			around = append(around, n)
			statement, is := n.(ast.Stmt)
			if !is || !reporting(statement) {
				return true
			}
			condition := conditionOf(around)
			if condition != nil && !negated[condition] {
				negated[condition] = true
				add(condition, "negated", statement, "mutants.Not(%d, ", ")")
			}
			switch _, returns := statement.(*ast.ReturnStmt); {
			case !returns:
				add(statement, "removed", statement, "if !mutants.On(%d) { ", " }")
			case condition != nil: // a function may have no end without the statement
				add(condition, "removed", statement, "!mutants.On(%d) && (", ")")
			}
			return true
		})
		if len(s.inserts) > 0 {
			end := fset.Position(file.Name.End()).Offset
			s.inserts[end] += "; import \"github.com/vllm-vcr/conformance/internal/base/mutants\""
			sources = append(sources, s)
		}
		return nil
	})
	return mutants, sources, err
}

// reporting is whether a statement reports a failure, or returns it as an error.
func reporting(s ast.Stmt) bool {
	switch s := s.(type) {
	case *ast.ExprStmt:
		return isReport(s.X)
	case *ast.ReturnStmt:
		return len(s.Results) > 0 && isReport(s.Results[len(s.Results)-1])
	}
	return false
}

func isReport(x ast.Expr) bool {
	call, is := x.(*ast.CallExpr)
	if !is {
		return false
	}
	switch f := call.Fun.(type) {
	case *ast.Ident:
		return f.Name == "fail" || f.Name == "wrong"
	case *ast.SelectorExpr:
		if of, is := f.X.(*ast.Ident); is && of.Name == "found" {
			return f.Sel.Name == "add"
		}
		return slices.Contains(reports, f.Sel.Name) && (f.Sel.Name != "end" || len(call.Args) > 2) // other methods of this name report nothing
	}
	return false
}

// conditionOf is the condition of the innermost if or case around a statement, nil if it has another one or none.
func conditionOf(around []ast.Node) ast.Expr {
	for i := len(around) - 2; i > 0; i-- {
		switch n := around[i].(type) {
		case *ast.FuncDecl, *ast.FuncLit, *ast.ForStmt, *ast.RangeStmt:
			return nil
		case *ast.IfStmt:
			if around[i+1] == n.Body {
				return n.Cond
			}
			return nil
		case *ast.CaseClause:
			if s, is := around[i-2].(*ast.SwitchStmt); is && s.Tag == nil && len(n.List) == 1 {
				return n.List[0]
			}
			return nil
		}
	}
	return nil
}

// changed is the source with the changes of all mutants.
func (s source) changed() []byte {
	var b bytes.Buffer
	from := 0
	for _, at := range slices.Sorted(maps.Keys(s.inserts)) {
		b.Write(s.text[from:at])
		b.WriteString(s.inserts[at])
		from = at
	}
	b.Write(s.text[from:])
	return b.Bytes()
}

// lab has the programs, and the trials: cases of the self-test, and tests.
type lab struct {
	root, dir string
	with      *regexp.Regexp // names of trials
	trials    []trial
}

// trial is a command that fails when it finds a mutant.
type trial struct {
	Name, Dir string
	Args      []string
	Reaches   map[int]bool // mutants
}

// tested are the packages whose own tests are trials.
var tested = []string{"internal/check", "internal/check/invariant", "internal/check/replay", "internal/check/coverage", "internal/check/frontendsuite"}

func (l *lab) build(sources []source) error {
	overlay := map[string]string{}
	write := func(path string, text []byte) error {
		file := filepath.Join(l.dir, fmt.Sprintf("source-%d.go", len(overlay)))
		overlay[path] = file
		return os.WriteFile(file, text, 0o600)
	}
	if err := write(filepath.Join(l.root, "internal/base/mutants/mutants.go"), []byte(helper)); err != nil {
		return err
	}
	for _, s := range sources {
		if err := write(s.path, s.changed()); err != nil {
			return err
		}
	}
	text, err := json.Marshal(map[string]any{"Replace": overlay})
	if err != nil {
		return err
	}
	file := filepath.Join(l.dir, "overlay.json")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return err
	}
	if _, err := l.output("go", "build", "-overlay", file, "-o", l.program(), "./cmd/vllm-vcr"); err != nil {
		return err
	}
	for _, pkg := range tested {
		if _, err := l.output("go", "test", "-c", "-vet=off", "-overlay", file, "-o", l.testOf(pkg), "./"+pkg); err != nil {
			return err
		}
	}
	return nil
}

func (l *lab) program() string { return filepath.Join(l.dir, "vllm-vcr") }

func (l *lab) testOf(pkg string) string {
	return filepath.Join(l.dir, strings.ReplaceAll(pkg, "/", "-")+".test")
}

func (l *lab) output(name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	cmd.Dir = l.root
	out, err := cmd.Output()
	if exit, is := err.(*exec.ExitError); is {
		err = fmt.Errorf("%s %s: %w\n%s%s", name, strings.Join(args, " "), err, out, exit.Stderr)
	}
	return string(out), err
}

// record runs each trial without a mutant, and notes what it comes to.
func (l *lab) record() error {
	known := filepath.Join(l.dir, "trials.json")
	if text, err := os.ReadFile(known); err == nil {
		return json.Unmarshal(text, &l.trials)
	}
	cases, err := l.output(l.program(), "conform", "--self-test", "--list")
	if err != nil {
		return err
	}
	newest, _, _ := strings.Cut(cases, "/")
	names := map[string]bool{}
	for line := range strings.Lines(cases) {
		name, _, _ := strings.Cut(line, " ")
		if strings.HasPrefix(name, newest+"/self-test/rule-") {
			name = newest + "/self-test/rule-*" // they are quick, and come to nearly the same
		}
		if !strings.HasPrefix(name, newest+"/") || strings.Contains(line, "(skipped: ") || names[name] {
			continue
		}
		names[name] = true
		l.trials = append(l.trials, trial{name, l.root, []string{l.program(), "conform", "--self-test", "--run", name}, nil})
	}
	for _, pkg := range tested {
		tests, err := l.output(l.testOf(pkg), "-test.list", "^(Test|Fuzz)")
		if err != nil {
			return err
		}
		for name := range strings.FieldsSeq(tests) {
			l.trials = append(l.trials, trial{pkg + " " + name, filepath.Join(l.root, pkg), []string{l.testOf(pkg), "-test.failfast", "-test.run", "^" + name + "$"}, nil})
		}
	}
	l.trials = slices.DeleteFunc(l.trials, func(t trial) bool { return !l.with.MatchString(t.Name) })
	seen := filepath.Join(l.dir, "seen")
	for i := range l.trials {
		t := &l.trials[i]
		os.Remove(seen)
		if !t.passes("MUTANTS_SEEN=" + seen) {
			return fmt.Errorf("%s fails without a mutant", t.Name)
		}
		text, _ := os.ReadFile(seen)
		t.Reaches = map[int]bool{}
		for word := range strings.FieldsSeq(string(text)) {
			n, _ := strconv.Atoi(word)
			t.Reaches[n] = true
		}
	}
	order := func(t trial) int {
		if strings.HasSuffix(t.Name, "/rule-*") || strings.HasSuffix(t.Name, "no-fault") {
			return 0 // the former have a fault for nearly each rule, and what has none fails where a condition is negated
		}
		return len(t.Reaches)
	}
	slices.SortStableFunc(l.trials, func(a, b trial) int { return cmp.Compare(order(a), order(b)) })
	text, err := json.Marshal(l.trials)
	if err != nil {
		return err
	}
	return os.WriteFile(known, text, 0o600)
}

// passes runs the trial. One that a mutant lets wait for ever fails.
func (t *trial) passes(env string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, t.Args[0], t.Args[1:]...)
	cmd.Dir, cmd.Env = t.Dir, append(os.Environ(), env)
	return cmd.Run() == nil
}

// maxTrials bounds how many trials a mutant needs to survive: more come to the same conditions as these do.
const maxTrials = 16

// killer is the name of the first trial that fails with a mutant, empty if none does.
func (l *lab) killer(m mutant) string {
	tries := 0
	for i := range l.trials {
		t := &l.trials[i]
		if !t.Reaches[m.number] {
			continue
		}
		if tries++; tries > maxTrials {
			break
		}
		if !t.passes("MUTANT=" + strconv.Itoa(m.number)) {
			return t.Name
		}
	}
	return ""
}
