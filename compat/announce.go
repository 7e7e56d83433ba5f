package compat

import (
	"fmt"
	"strings"
)

// Title is the first line of the commit or pull request that makes the change, at most
// 72 characters. It is empty when nothing changes.
func (d *Decision) Title() string {
	var added, moved, removed []string
	for _, c := range d.Differences() {
		switch {
		case c.Added() && c.Line() == RC, c.Moved() && c.Line() == RC:
			moved = append(moved, "rc to "+c.To.Tag)
		case c.Added():
			added = append(added, c.Line())
		case c.Moved():
			moved = append(moved, c.Line()+" to "+c.To.Tag)
		case c.Removed():
			removed = append(removed, c.Line())
		}
	}
	var parts []string
	for _, p := range []struct {
		verb  string
		lines []string
	}{{"add", added}, {"move", moved}, {"drop", removed}} {
		if len(p.lines) > 0 {
			parts = append(parts, p.verb+" "+strings.Join(p.lines, ", "))
		}
	}
	if len(parts) == 0 {
		return ""
	}
	title := "vLLM lines: " + strings.Join(parts, "; ")
	if len(title) > 72 {
		return fmt.Sprintf("vLLM lines: %d added, %d moved, %d dropped", len(added), len(moved), len(removed))
	}
	return title
}

// Body is the text of the pull request, in Markdown: where the list of releases is
// from, a table of what changes, the notes, and what a person has to do, given as
// sentences on top of what follows from the change itself.
func (d *Decision) Body(source string, toDo []string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Decided from %s.\n\n", source)
	b.WriteString("| line | from | to | commit | gates | default |\n|---|---|---|---|---|---|\n")
	for _, c := range d.Differences() {
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s |\n", c.Line(), orDash(c.From.Tag), orDash(c.To.Tag),
			fromTo(orDash(c.From.ProtocolRev), orDash(c.To.ProtocolRev)),
			fromTo(yesNo(c.From.FidelityValidated), yesNo(c.To.FidelityValidated)),
			fromTo(yesNo(c.From.Default), yesNo(c.To.Default)))
	}
	section(&b, "Notes", "- ", d.Notes)
	section(&b, "What a person has to do", "- [ ] ", append(d.toDo(), toDo...))
	return b.String()
}

func section(b *strings.Builder, title, bullet string, lines []string) {
	if len(lines) == 0 {
		return
	}
	fmt.Fprintf(b, "\n%s:\n\n", title)
	for _, l := range lines {
		b.WriteString(bullet + l + "\n")
	}
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func yesNo(yes bool) string {
	if yes {
		return "yes"
	}
	return "no"
}

func fromTo(from, to string) string {
	if from == to {
		return from
	}
	return from + " → " + to
}

// toDo is what follows from the change itself.
func (d *Decision) toDo() []string {
	var all []string
	for _, c := range d.Differences() {
		if c.Removed() || c.To.IsTracker() || !c.Added() && !c.Moved() {
			continue
		}
		why := "it is new"
		if c.From.FidelityValidated {
			why = "its goldens are of " + c.From.Tag
		}
		all = append(all, fmt.Sprintf("line %s does not gate, as %s: capture goldens from %s, "+
			"register them (`vllm-vcr golden add`), then `vllm-vcr compat set --line %s --fidelity-validated`",
			c.Line(), why, c.To.Tag, c.Line()))
	}
	if rev := d.staleNightly(); rev != "" {
		all = append(all, fmt.Sprintf("nightly has the commit of the release that was the newest: "+
			"`vllm-vcr compat set --line nightly --rev %s` moves it on", rev))
	}
	return all
}

// staleNightly is the commit that nightly should have when it has followed the default
// line, which moves; or "".
func (d *Decision) staleNightly() string {
	nightly := byName(d.Lines, Nightly)
	before, _ := (&Matrix{Lines: d.Before}).Default()
	after, _ := (&Matrix{Lines: d.Lines}).Default()
	if !sameCommit(nightly.ProtocolRev, before.ProtocolRev) || sameCommit(before.ProtocolRev, after.ProtocolRev) {
		return ""
	}
	return after.ProtocolRev
}
