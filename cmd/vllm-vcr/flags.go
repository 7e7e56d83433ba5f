package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/vllm-vcr/conformance/internal/base/tomlfile"
)

// Annotations of a flag.
const (
	noteGroup    = "group"    // the title that the help lists it under
	noteCommon   = "common"   // the short help lists it
	noteRequired = "required" // it must be given
	noteChoices  = "choices"  // the values that it may have
	noteAbove    = "above"    // it must be more than 0
	noteLeast    = "least"    // it must be 0 or more
	noteNeeds    = "needs"    // one of these flags must be given too
)

// grouped lists all flags that are in no group yet under a title.
func grouped(flags *pflag.FlagSet, title string) {
	inOrder(flags, func(f *pflag.Flag) {
		if f.Annotations[noteGroup] == nil {
			annotate(f, noteGroup, title)
		}
	})
}

// inOrder visits flags in the order in which they were defined, which takes no sorting.
func inOrder(flags *pflag.FlagSet, do func(*pflag.Flag)) {
	defer func(sorted bool) { flags.SortFlags = sorted }(flags.SortFlags)
	flags.SortFlags = false
	flags.VisitAll(do)
}

// common chooses the flags that the short help lists. Without a choice it lists all.
func common(flags *pflag.FlagSet, names ...string) { note(flags, noteCommon, names...) }

// required, above0 and least0 restrict the values of flags, see [checkFlags].
func required(flags *pflag.FlagSet, names ...string) { note(flags, noteRequired, names...) }
func above0(flags *pflag.FlagSet, names ...string)   { note(flags, noteAbove, names...) }
func least0(flags *pflag.FlagSet, names ...string)   { note(flags, noteLeast, names...) }

func note(flags *pflag.FlagSet, note string, names ...string) {
	for _, name := range names {
		annotate(mustLookup(flags, name), note, "")
	}
}

// needs makes a flag an error unless one of some others is given.
func needs(flags *pflag.FlagSet, name string, others ...string) {
	annotate(mustLookup(flags, name), noteNeeds, others...)
}

// oneOf adds a flag that has one of some words as its value.
func oneOf[T ~string](flags *pflag.FlagSet, to *string, name string, fallback T, usage string, words ...T) {
	flags.StringVar(to, name, string(fallback), usage)
	choices(flags, name, words...)
}

// formatFlag adds --format, one of whose words is json, and --json, which is short for that.
func formatFlag[T ~string](flags *pflag.FlagSet, to *string, fallback T, usage string, words ...T) {
	oneOf(flags, to, "format", fallback, usage, words...)
	flags.VarPF(jsonFormat{to}, "json", "", "the same as --format json").NoOptDefVal = "true"
}

// jsonFormat is the flag --json of a command that has --format.
type jsonFormat struct{ format *string }

func (j jsonFormat) String() string {
	return strconv.FormatBool(j.format != nil && *j.format == formJSON)
}
func (j jsonFormat) Type() string { return "bool" }

func (j jsonFormat) Set(text string) error {
	wanted, err := strconv.ParseBool(text)
	if wanted {
		*j.format = formJSON
	}
	return err
}

// choices restricts the values of a flag, or the elements of one that is a list, and has shells complete them.
func choices[T ~string](flags *pflag.FlagSet, name string, words ...T) {
	annotate(mustLookup(flags, name), noteChoices, texts(words)...)
}

// exclusive lets at most one of some flags be given, on the command line or by a variable.
func exclusive(flags *pflag.FlagSet, names ...string) {
	cmd := &cobra.Command{} // has the same flags
	for _, name := range names {
		cmd.Flags().AddFlag(mustLookup(flags, name))
	}
	cmd.MarkFlagsMutuallyExclusive(names...)
}

func annotate(f *pflag.Flag, note string, values ...string) {
	if f.Annotations == nil {
		f.Annotations = map[string][]string{}
	}
	f.Annotations[note] = append(f.Annotations[note], values...)
}

// mustLookup returns a flag that the program has.
func mustLookup(flags *pflag.FlagSet, name string) *pflag.Flag {
	f := flags.Lookup(name)
	if f == nil {
		panic("there is no flag --" + name)
	}
	return f
}

// checkFlags refuses what the annotations of flags rule out. A default is what it is.
func checkFlags(flags *pflag.FlagSet) (err error) {
	inOrder(flags, func(f *pflag.Flag) {
		if err == nil {
			err = checkFlag(flags, f)
		}
	})
	return err
}

func checkFlag(flags *pflag.FlagSet, f *pflag.Flag) error {
	values := []string{f.Value.String()}
	if list, isList := f.Value.(pflag.SliceValue); isList {
		values = list.GetSlice()
	}
	if f.Annotations[noteRequired] != nil && strings.Join(values, "") == "" {
		return fmt.Errorf("--%s is not given", f.Name)
	}
	if !f.Changed {
		return nil
	}
	for _, value := range values {
		if known := f.Annotations[noteChoices]; known != nil && value != f.DefValue {
			if err := oneOfWords("--"+f.Name, value, known); err != nil {
				return err
			}
		}
		switch n := number(value); {
		case f.Annotations[noteAbove] != nil && n <= 0:
			return fmt.Errorf("--%s %s: want more than 0", f.Name, value)
		case f.Annotations[noteLeast] != nil && n < 0:
			return fmt.Errorf("--%s %s: want 0 or more", f.Name, value)
		}
	}
	others := f.Annotations[noteNeeds]
	if others != nil && f.Value.String() != "false" && !slices.ContainsFunc(others, flags.Changed) {
		return fmt.Errorf("--%s needs --%s", f.Name, strings.Join(others, " or --"))
	}
	return nil
}

// number is the value of a flag that is a number or a duration.
func number(value string) float64 {
	if d, err := time.ParseDuration(value); err == nil {
		return float64(d)
	}
	n, _ := strconv.ParseFloat(value, 64) // the flag has read it
	return n
}

// oneOfWords refuses a word that is not among the known ones.
func oneOfWords(what, word string, known []string) error {
	if slices.Contains(known, word) {
		return nil
	}
	return fmt.Errorf("%s %q%s", what, word, tomlfile.DidYouMean(word, known, "want one of "+strings.Join(known, ", ")))
}

func texts[T ~string](words []T) []string { return as[string](words) }

// as converts words that were checked.
func as[To, From ~string](words []From) []To {
	all := make([]To, len(words))
	for i, word := range words {
		all[i] = To(word)
	}
	return all
}
