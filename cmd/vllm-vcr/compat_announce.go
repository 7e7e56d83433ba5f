package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/vllm-vcr/conformance/compat"
)

// announcement is a decision about the window, and what is to be told of it.
type announcement struct {
	*compat.Decision
	list            releaseList
	missingProfiles []string // lines that this binary has no wire profile of
	toDo            []string // for a person
}

// learn takes from the check of the edited window what a person has to do about it.
func (n *announcement) learn(checked checkedWindow) {
	for _, f := range checked.findings {
		at := slices.IndexFunc(checked.window.Lines, func(l compat.Line) bool { return l.Pos == f.Line })
		if f.Code == compat.CodeNoProfile && at >= 0 {
			n.missingProfiles = append(n.missingProfiles, checked.window.Lines[at].Name)
		}
	}
	for _, name := range n.missingProfiles {
		n.toDo = append(n.toDo, fmt.Sprintf("vllm-vcr %s has no wire profile of line %s, so that it refuses this window "+
			"(%s): upgrade it to a version that has", buildVersion(), name, compat.CodeNoProfile))
	}
	goldens := countGoldens(checked.registry)
	for _, d := range n.Differences() {
		if count := goldens[d.Line()]; d.Removed() && count > 0 {
			n.toDo = append(n.toDo, fmt.Sprintf("line %s leaves goldens in the manifest (%d): remove them with the markers "+
				"of their block; `vllm-vcr compat check` lists them", d.Line(), count))
		}
	}
}

// outputs are those of the step.
func (n *announcement) outputs() []output {
	var head compat.Line // of the lines that change and stay, the newest
	names := []string{}
	for _, d := range n.Differences() {
		if head.Name == "" {
			head = d.To
		}
		names = append(names, d.Line())
	}
	if head.Name == "" && len(names) > 0 {
		head.Name = names[0]
	}
	all, err := json.Marshal(names)
	if err != nil {
		all = nil // not reached: they are strings
	}
	standard, _ := (&compat.Matrix{Lines: n.Lines}).Default()
	body := ""
	if n.Changed() {
		body = n.Body(n.source(), n.toDo)
	}
	return []output{
		{"changed", strconv.FormatBool(n.Changed())},
		{"line", head.Name},
		{"lines", string(all)},
		{"tag", head.Tag},
		{"rev", head.ProtocolRev},
		{"default", standard.Name},
		{"missing-profiles", strings.Join(n.missingProfiles, ",")},
		{"title", n.Title()},
		{"body", body},
	}
}

// source says what the decision rests on.
func (n *announcement) source() string {
	newest := n.list.releases[0]
	for _, r := range n.list.releases {
		if r.Compare(newest.Version) > 0 {
			newest = r
		}
	}
	return fmt.Sprintf("the %d releases at %s, the newest %s", len(n.list.releases), n.list.where, newest.Tag())
}

// text is the outputs for a reader.
func (n *announcement) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "source: %s\n", n.source())
	for _, o := range n.outputs() {
		if o.name != "body" && o.value != "" {
			fmt.Fprintf(&b, "%s: %s\n", o.name, o.value)
		} else if o.value != "" {
			b.WriteString("\n" + o.value)
		}
	}
	return b.String()
}
