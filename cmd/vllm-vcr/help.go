package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// What the annotations of a flag say of it.
const (
	noteGroup  = "group"     // the title that it is listed under
	noteCommon = "common"    // the short help lists it
	noteOld    = "old names" // names that it had and that still work
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
func common(flags *pflag.FlagSet, names ...string) {
	for _, name := range names {
		annotate(mustLookup(flags, name), noteCommon, "")
	}
}

// renamed lets old names of flags, and the variables of old names, stand for the new ones.
func renamed(flags *pflag.FlagSet, newNames map[string]string) {
	alsoNamed(flags, newNames)
	for _, old := range slices.Sorted(maps.Keys(newNames)) {
		annotate(mustLookup(flags, newNames[old]), noteOld, old)
	}
}

// alsoNamed lets other names stand for flags, without a variable of that name.
func alsoNamed(flags *pflag.FlagSet, names map[string]string) {
	before := flags.GetNormalizeFunc()
	flags.SetNormalizeFunc(func(set *pflag.FlagSet, name string) pflag.NormalizedName {
		return before(set, cmp.Or(names[name], name))
	})
}

func annotate(f *pflag.Flag, note, value string) {
	if f.Annotations == nil {
		f.Annotations = map[string][]string{}
	}
	f.Annotations[note] = append(f.Annotations[note], value)
}

// mustLookup is a flag that the program has.
func mustLookup(flags *pflag.FlagSet, name string) *pflag.Flag {
	f := flags.Lookup(name)
	if f == nil {
		panic("there is no flag --" + name)
	}
	return f
}

// flagGroup is some flags of a command under a title.
type flagGroup struct {
	title string
	flags []*pflag.Flag
}

// flagGroups are the flags of a command that the help lists, in the order in which they were defined, and how many others
// --help-all lists.
func flagGroups(cmd *cobra.Command, all bool) (groups []flagGroup, more int) {
	flags := ownFlags(cmd)
	hasCommon := func(f *pflag.Flag) bool { return f.Annotations[noteCommon] != nil }
	all = all || !slices.ContainsFunc(flags, hasCommon)
	for _, f := range flags {
		if !all && !hasCommon(f) {
			more++
			continue
		}
		title := "Flags"
		if named := f.Annotations[noteGroup]; named != nil {
			title = named[0]
		}
		at := slices.IndexFunc(groups, func(g flagGroup) bool { return g.title == title })
		if at < 0 {
			at = len(groups)
			groups = append(groups, flagGroup{title: title})
		}
		groups[at].flags = append(groups[at].flags, f)
	}
	return groups, more
}

// ownFlags are the flags that a command has and its root does not, in the order in which they were defined.
func ownFlags(cmd *cobra.Command) (own []*pflag.Flag) {
	inOrder(cmd.Flags(), func(f *pflag.Flag) {
		isRoot := f.Name == "help" || f.Name == "version" && !cmd.HasParent() || cmd.Root().PersistentFlags().Lookup(f.Name) == f
		if !f.Hidden && !isRoot {
			own = append(own, f)
		}
	})
	return own
}

// helpColumns is how wide the help is: a terminal of 80 columns shows it as it is.
const helpColumns = 80

// helpIndent is where the text of a flag or a command begins.
const helpIndent = 24

// helpText is what --help prints, or --help-all.
func helpText(cmd *cobra.Command, all bool) string {
	var b strings.Builder
	b.WriteString(wrapText(cmp.Or(cmd.Long, cmd.Short+".")) + "\n")
	fmt.Fprintf(&b, "\nUsage:\n  %s\n", cmd.UseLine())
	if cmd.Example != "" {
		fmt.Fprintf(&b, "\nExamples:\n%s\n", strings.Trim(cmd.Example, "\n"))
	}
	if cmd.HasAvailableSubCommands() {
		b.WriteString("\nCommands:\n")
		for _, child := range cmd.Commands() {
			if child.IsAvailableCommand() {
				entry(&b, "  "+child.Name(), child.Short)
			}
		}
	}
	groups, more := flagGroups(cmd, all)
	for _, group := range groups {
		fmt.Fprintf(&b, "\n%s:\n", group.title)
		for _, f := range group.flags {
			flagEntry(&b, f)
		}
	}
	b.WriteString("\nFlags of every command:\n")
	entry(&b, "  -h, --help", "print this help")
	cmd.Root().PersistentFlags().VisitAll(func(f *pflag.Flag) {
		if all || f.Annotations[noteCommon] != nil {
			flagEntry(&b, f)
		}
	})
	if !cmd.HasParent() {
		entry(&b, "  --version", "print the version of vllm-vcr, and the vLLM lines it supports")
	}
	var notes []string
	if more > 0 {
		notes = append(notes, fmt.Sprintf("%s --help-all lists %d more flags.", cmd.CommandPath(), more))
	}
	if slices.ContainsFunc(groups, func(g flagGroup) bool { return slices.ContainsFunc(g.flags, isDuration) }) {
		notes = append(notes, "A DURATION is a number with a unit, such as 150ms, 90s, 5m or 2h.")
	}
	if len(groups) > 0 {
		f := groups[0].flags[0]
		notes = append(notes, fmt.Sprintf("Every flag can also be set by an environment variable: --%s by %s.", f.Name, envName(f.Name)))
	}
	if len(notes) > 0 {
		b.WriteString("\n" + wrapText(strings.Join(notes, " ")) + "\n")
	}
	return b.String()
}

func isDuration(f *pflag.Flag) bool { return f.Value.Type() == "duration" }

// flagEntry is a flag with its text and its default.
func flagEntry(b *strings.Builder, f *pflag.Flag) {
	name, usage, fallback := describeFlag(f)
	if fallback != "" {
		usage += " (default " + fallback + ")"
	}
	entry(b, "  "+name, usage)
}

// valueNames are what the value of a flag is called where its text does not name it.
var valueNames = map[string]string{
	"string": "STRING", "strings": "LIST", "stringArray": "STRING", "stringToString": "KEY=VALUE", "int": "N", "uint": "N", "uint32": "N",
	"ints": "N,N", "float": "X", "duration": "DURATION", "path": "FILE",
}

// describeFlag is a flag as it is written on the command line, what it does, and its default, "" where that says nothing.
func describeFlag(f *pflag.Flag) (name, usage, fallback string) {
	kind, usage := pflag.UnquoteUsage(f)
	if known, ok := valueNames[kind]; ok {
		kind = known
	}
	name = "--" + f.Name
	switch {
	case f.NoOptDefVal != "" && kind != "":
		name += "[=" + kind + "]"
	case kind != "":
		name += " " + kind
	}
	if f.Shorthand != "" {
		name = "-" + f.Shorthand + ", " + name
	}
	usage, fallback = defaultOf(f, usage)
	if isDuration(f) {
		fallback = shortDuration(fallback)
	}
	return name, usage, fallback
}

// defaultOf takes a flag's default out of its usage, where that explains it, else
// from its value, where that says something.
func defaultOf(f *pflag.Flag, usage string) (rest, fallback string) {
	if before, after, found := strings.Cut(usage, " (default "); found {
		return before, strings.TrimSuffix(after, ")")
	}
	switch f.DefValue {
	case "", "0", "0s", "[]", "false": // off, none, or no limit, which the usage says where it matters
		return usage, ""
	}
	return usage, f.DefValue
}

// shortDuration leaves out the units that are zero: 5m0s is 5m.
func shortDuration(text string) string {
	for _, unit := range []struct{ long, short string }{{"m0s", "m"}, {"h0m", "h"}} {
		if strings.HasSuffix(text, unit.long) {
			text = strings.TrimSuffix(text, unit.long) + unit.short
		}
	}
	return text
}

// entry is a name and its text, which begins on the next line if the name is long.
func entry(b *strings.Builder, name, text string) {
	lines := wrapWords(text, helpColumns-helpIndent)
	first := name + strings.Repeat(" ", max(0, helpIndent-utf8.RuneCountInString(name)))
	if utf8.RuneCountInString(name) > helpIndent-2 {
		fmt.Fprintln(b, name)
		first = strings.Repeat(" ", helpIndent)
	}
	for i, line := range lines {
		if i > 0 {
			first = strings.Repeat(" ", helpIndent)
		}
		fmt.Fprintln(b, first+line)
	}
}

// wrapText breaks paragraphs. A line that begins with a space is kept apart from the others: it is a row of a list, a word
// and its text with spaces between.
func wrapText(text string) string {
	var out []string
	for i, paragraph := range paragraphs(text) {
		if i > 0 {
			out = append(out, "")
		}
		for _, row := range paragraph {
			indent := 0
			if word, text, isRow := listRow(row); isRow {
				indent = utf8.RuneCountInString(row) - utf8.RuneCountInString(text)
				row = "  " + word + strings.Repeat(" ", indent-2-utf8.RuneCountInString(word)) + text
			}
			for n, line := range wrapWords(row[indent:], helpColumns-indent) {
				lead := row[:indent]
				if n > 0 {
					lead = strings.Repeat(" ", indent)
				}
				out = append(out, lead+line)
			}
		}
	}
	return strings.Join(out, "\n")
}

// paragraphs are the parts of a text between empty lines. Each is its rows: one for its sentences, and one for each entry
// of a list.
func paragraphs(text string) (all [][]string) {
	for _, part := range strings.Split(text, "\n\n") {
		var rows []string
		for _, line := range strings.Split(strings.Trim(part, "\n"), "\n") {
			last := len(rows) - 1
			if last < 0 || strings.HasPrefix(line, " ") || strings.HasPrefix(rows[last], " ") {
				rows = append(rows, line)
				continue
			}
			rows[last] += " " + line
		}
		all = append(all, rows)
	}
	return all
}

// listRow takes the row of a list apart: "  word  text".
func listRow(row string) (word, text string, ok bool) {
	rest, indented := strings.CutPrefix(row, "  ")
	word, text, ok = strings.Cut(rest, "  ")
	return word, strings.TrimLeft(text, " "), indented && ok
}

// wrapWords breaks a text into lines of at most so many columns.
func wrapWords(text string, columns int) (lines []string) {
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > columns {
			lines = append(lines, line)
			line = ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	return append(lines, line)
}
