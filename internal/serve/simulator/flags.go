package simulator

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/vllm-vcr/conformance/internal/serve/builtin"
)

// Flags are the flags that only llm-d-inference-sim has, in the flag set of serve. One of them, or --simulator, makes
// serve do as the simulator where vLLM does not have that, or does otherwise.
type Flags struct {
	// On is --simulator, or what the others mean.
	On bool
	// OwnConfig is set if a file of --config has keys of the simulator only, and a model: without flags of serve, that means
	// the simulator.
	OwnConfig bool
	// Times and Plans are what the engines take their times and their answers from. [Flags.Translate] sets them.
	Times *Times
	Plans *builtin.Plans

	flags  *pflag.FlagSet
	values map[string]*Value
	model  string
	// modelLen is the context length that requests are checked with.
	modelLen int
}

// Add adds --simulator and, hidden, the flags that serve does not have.
func (s *Flags) Add(flags *pflag.FlagSet) {
	flags.BoolVar(&s.On, "simulator", false, "do as llm-d-inference-sim where vLLM has nothing like it or differs, with the builtin frontend; a flag that only it has, such as --model, does the same. See docs/simulator.md")
	s.flags, s.values = flags, map[string]*Value{}
	hidden := func(name string, value *Value) {
		flags.Var(value, name, "of llm-d-inference-sim, see docs/simulator.md")
		added := flags.Lookup(name)
		added.Hidden = true
		if value.flag.Kind == "bool" || value.flag.Kind == "switch" {
			added.NoOptDefVal = "true"
		}
	}
	for i := range Table {
		f := &Table[i]
		if own := flags.Lookup(f.Name); own != nil {
			switch {
			case f.Kind == "time":
				own.Value = &timeValue{own.Value, ""}
			case f.Name == "seed":
				own.Value = anySeed{own.Value}
			}
			continue
		}
		s.values[f.Name] = &Value{flag: f}
		hidden(f.Name, s.values[f.Name])
		if no := "no-" + f.Name; f.Kind == "switch" && flags.Lookup(no) == nil {
			hidden(no, &Value{flag: f, off: true, to: s.values[f.Name]})
		}
	}
}

// A Value is the value of a flag of the simulator. It is a [pflag.Value].
type Value struct {
	flag  *Flag
	off   bool // of the form that begins with "no-"
	to    *Value
	texts []string
}

func (v *Value) String() string { return strings.Join(v.texts, ",") }

// Type has names of its own, so that errors have the texts of Set.
func (v *Value) Type() string {
	if v.flag.Kind == "list" {
		return "stringArray"
	}
	return "simulator-" + v.flag.Kind
}

// Set checks a value. A time is a duration, or a number of milliseconds.
func (v *Value) Set(text string) (err error) {
	f := v.flag
	number := 0.0
	switch f.Kind {
	case "int":
		var n int64
		n, err = strconv.ParseInt(text, 10, 64)
		number = float64(n)
	case "number":
		number, err = strconv.ParseFloat(text, 64)
	case "time":
		if text, err = durationText(text); err != nil {
			return err
		}
		if text[0] == '-' {
			return fmt.Errorf("%s cannot be negative", strings.ReplaceAll(f.Name, "-", " "))
		}
	case "bool", "switch":
		var is bool
		if is, err = strconv.ParseBool(text); err != nil {
			return errors.New("want true or false")
		}
		text = strconv.FormatBool(is != v.off)
	}
	if err != nil {
		return fmt.Errorf("want %s", map[string]string{"int": "a whole number", "number": "a number"}[f.Kind])
	}
	if (f.lo != 0 || f.hi != 0) && !(number >= f.lo && number <= f.hi) {
		return errors.New(cmp.Or(f.wrong, fmt.Sprintf("want %v to %v", f.lo, f.hi)))
	}
	to := cmp.Or(v.to, v)
	if f.Kind != "list" {
		to.texts = nil
	}
	to.texts = append(to.texts, text)
	return nil
}

// Check reports whether a text is a value of the flag.
func (f *Flag) Check(text string) error { return (&Value{flag: f}).Set(text) }

// durationText is a duration; a number without a unit, as older releases of the simulator have them, is one of
// milliseconds.
func durationText(text string) (string, error) {
	if _, err := strconv.ParseUint(text, 10, 63); err == nil && text != "0" {
		text += "ms"
	}
	d, err := time.ParseDuration(text)
	return d.String(), err
}

// timeValue is the value of a flag of serve that takes a number of milliseconds too, if the simulator is on.
type timeValue struct {
	pflag.Value
	number string // that was given
}

func (v *timeValue) Set(text string) error {
	v.number = ""
	if long, err := durationText(text); err == nil {
		if _, err := time.ParseDuration(text); err != nil {
			v.number = text
		}
		text = long
	}
	return v.Value.Set(text)
}

// anySeed is the value of a flag that takes negative numbers as well.
type anySeed struct{ pflag.Value }

func (v anySeed) Set(text string) error {
	if n, err := strconv.ParseInt(text, 10, 64); err == nil && n < 0 {
		text = strconv.FormatUint(uint64(n), 10)
	}
	return v.Value.Set(text)
}

// IsFlag reports whether a flag is one that only the simulator has.
func IsFlag(f *pflag.Flag) bool { _, is := f.Value.(*Value); return is }

func (s *Flags) given(name string) bool { return s.values[name].texts != nil }

// text is the value of a flag, or its default.
func (s *Flags) text(name string) string {
	v := s.values[name]
	if len(v.texts) == 0 {
		return v.flag.Fallback
	}
	return v.texts[len(v.texts)-1]
}

func (s *Flags) int(name string) int {
	n, _ := strconv.Atoi(s.text(name)) // Set has read it
	return n
}

func (s *Flags) number(name string) float64 {
	n, _ := strconv.ParseFloat(s.text(name), 64)
	return n
}

func (s *Flags) bool(name string) bool { return s.text(name) == "true" }

func (s *Flags) time(name string) time.Duration {
	d, _ := time.ParseDuration(s.text(name))
	return d
}

// CommandLine are the arguments of a program. One with the name of llm-d-inference-sim does as that does.
func CommandLine(args []string) []string {
	if strings.TrimSuffix(filepath.Base(args[0]), ".exe") == "llm-d-inference-sim" {
		return append([]string{"serve", "--simulator"}, args[1:]...)
	}
	return args[1:]
}

// Arguments writes a command line of the simulator as one that is parsed: several values after a flag become several
// flags, and a value after a flag that is true or false is joined to it. The value of a list may be a word only where
// the model is not: if --model or --config is there, or something before the first flag.
func Arguments(args []string) []string {
	at := slices.IndexFunc(args, func(arg string) bool { return !strings.HasPrefix(arg, "-") })
	if at < 0 || args[at] != "serve" {
		return args
	}
	out, rest := slices.Clone(args[:at+1]), args[at+1:]
	named := len(rest) > 0 && !strings.HasPrefix(rest[0], "-") || slices.ContainsFunc(rest, func(arg string) bool {
		name, _, _ := strings.Cut(arg, "=")
		return name == "--model" || name == "--config"
	})
	kinds := map[string]string{}
	for _, f := range Table {
		kinds["--"+f.Name] = f.Kind
		if f.Kind == "switch" {
			kinds["--no-"+f.Name] = f.Kind
		}
	}
	for i := 0; i < len(rest); i++ {
		arg := rest[i]
		next := ""
		if i+1 < len(rest) {
			next = rest[i+1]
		}
		switch kind := kinds[arg]; {
		case arg == "--":
			return append(out, rest[i:]...)
		case (kind == "bool" || kind == "switch") && (next == "true" || next == "false"):
			out = append(out, arg+"="+next)
			i++
		case kind == "list" && named:
			if next == "" || strings.HasPrefix(next, "-") {
				break // a list without values
			}
			for i+1 < len(rest) && !strings.HasPrefix(rest[i+1], "-") {
				i++
				if rest[i] != "" {
					out = append(out, arg+"="+rest[i])
				}
			}
		case (arg == "-v" || strings.HasPrefix(arg, "-v=")) && named: // klog's, which has a number
			value, joined := strings.CutPrefix(arg, "-v=")
			if !joined {
				value = next
			}
			if _, err := strconv.Atoi(value); err != nil {
				out = append(out, arg)
				break
			}
			out = append(out, "--v="+value)
			if !joined {
				i++
			}
		default:
			out = append(out, arg)
		}
	}
	return out
}
