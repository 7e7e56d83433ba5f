package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// manFolder is where an archive has its manual pages: man -M man vllm-vcr-conform shows one.
const manFolder = "man/man1"

// writeManual makes a manual page of each section about a command of the page of commands, docs/cli.md, and one of what is
// before them. It writes them into dir and returns the entries of the archive.
func (p *product) writeManual(version, dir string) ([]entry, error) {
	if p.manual == "" {
		return nil, nil
	}
	text, err := os.ReadFile(p.path(p.manual))
	if err != nil {
		return nil, err
	}
	var entries []entry
	for _, page := range manualPages(p.name, string(text)) {
		path := filepath.Join(dir, page.name+".1")
		if err := os.WriteFile(path, []byte(page.roff(p.name, version)), 0o644); err != nil {
			return nil, err
		}
		entries = append(entries, entry{path: path, mode: 0o644, folder: manFolder})
	}
	if len(entries) < 2 {
		return nil, fmt.Errorf("%s has no section about a command: want such as \"## %s version\"", p.manual, p.name)
	}
	return entries, nil
}

// A manualPage is a command, with its section of the page of commands.
type manualPage struct{ name, short, text string }

// manualPages takes the page of commands apart. The text of each is that below its heading.
func manualPages(product, text string) []manualPage {
	sections := strings.Split("\n"+text, "\n## ")
	_, intro, _ := strings.Cut(sections[0], "\n# "+product+"\n")
	root := manualPage{name: product, short: "the commands of " + product, text: intro}
	shorts := map[string]string{} // by the names of the pages
	for line := range strings.Lines(intro) {
		if cells := strings.Split(line, "|"); len(cells) == 4 && strings.HasPrefix(cells[1], " [`") {
			command, _, _ := strings.Cut(strings.TrimPrefix(cells[1], " [`"), "`")
			shorts[strings.ReplaceAll(command, " ", "-")] = strings.TrimSpace(cells[2])
		}
	}
	var pages []manualPage
	for _, section := range sections[1:] {
		heading, text, _ := strings.Cut(section, "\n")
		if !strings.HasPrefix(heading, product+" ") {
			root.text += "\n**" + heading + "**\n" + text
			continue
		}
		name := strings.ReplaceAll(heading, " ", "-")
		pages = append(pages, manualPage{name: name, short: shorts[name], text: text})
	}
	return append([]manualPage{root}, pages...)
}

// roff is the page in the language of man(7). Nothing in it depends on when or where it is made.
func (m manualPage) roff(product, version string) string {
	var b strings.Builder
	fmt.Fprintf(&b, ".TH %q 1 \"\" %q %q\n.nh\n.ad l\n.SH NAME\n%s \\- %s\n.SH DESCRIPTION\n",
		strings.ToUpper(m.name), product+" "+version, product, roffText(m.name), roffText(m.short))
	isCode := false
	for line := range strings.SplitSeq(strings.TrimSpace(m.text), "\n") {
		title, isTitle := strings.CutPrefix(line, "**")
		item, isItem := strings.CutPrefix(line, "- ")
		switch {
		case strings.HasPrefix(line, "```"):
			if isCode = !isCode; isCode {
				b.WriteString(".PP\n.RS 4\n.nf\n")
			} else {
				b.WriteString(".fi\n.RE\n")
			}
		case isCode:
			b.WriteString(roffLine(line))
		case line == "", strings.HasPrefix(line, "|---"):
			b.WriteString(".PP\n")
		case isTitle:
			fmt.Fprintf(&b, ".SH %s\n", strings.ToUpper(roffText(strings.TrimSuffix(title, "**"))))
		case isItem:
			b.WriteString(".IP \\(bu 2\n" + roffLine(item))
		case strings.HasPrefix(line, "| "):
			b.WriteString(roffRow(line))
		default:
			b.WriteString(roffLine(line))
		}
	}
	return b.String()
}

// roffRow is a row of a table: a flag with its text, its default and its variable, or a command with its text. Rows of
// headings are left out.
func roffRow(line string) string {
	cells := strings.Split(strings.ReplaceAll(line, `\|`, "\x00"), "|")
	for i := range cells {
		cells[i] = strings.TrimSpace(strings.ReplaceAll(cells[i], "\x00", "|"))
	}
	switch {
	case len(cells) == 6 && strings.HasPrefix(cells[1], "`"):
		text := cells[4]
		if cells[3] != "" {
			text += " (default " + cells[3] + ")"
		}
		if cells[2] != "" {
			text += "; " + cells[2]
		}
		return ".TP\n.B " + roffText(cells[1]) + "\n" + roffLine(text)
	case len(cells) == 4 && strings.HasPrefix(cells[1], "["):
		command, _, _ := strings.Cut(strings.TrimPrefix(cells[1], "["), "]")
		return ".TP\n.B " + roffText(command) + "\n" + roffLine(cells[2])
	}
	return ""
}

// roffText is a text of Markdown without its marks, with what roff would act on escaped.
func roffText(text string) string {
	return strings.NewReplacer("`", "", `\`, `\e`, "-", `\-`).Replace(text)
}

// roffLine is a line of text: one that begins with a dot or an apostrophe would be a request.
func roffLine(line string) string {
	text := roffText(line)
	if strings.HasPrefix(text, ".") || strings.HasPrefix(text, "'") {
		text = `\&` + text
	}
	return text + "\n"
}
