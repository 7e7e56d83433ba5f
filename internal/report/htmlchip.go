package report

import (
	"strconv"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/report/page"
)

// classOf is the style of a verdict.
func classOf(v conformance.Verdict) string {
	switch {
	case v.Red():
		return "fail"
	case v == conformance.Pass:
		return "pass"
	case v == conformance.Skip:
		return "skip"
	}
	return "known"
}

// grouped writes a number in groups of three digits: "50,000,000".
func grouped(n int) string {
	digits := strconv.Itoa(n)
	for at := len(digits) - 3; at > 0; at -= 3 {
		digits = digits[:at] + "," + digits[at:]
	}
	return digits
}

// chip is a few words in the colour of a verdict.
func chip(style, words string) page.Content {
	return page.El("span", page.Class("chip "+style), page.Text(words))
}

// chips are the counts, those that are zero left out.
func chips(c Counts) page.Contents {
	var all page.Contents
	for _, v := range conformance.Verdicts() {
		if c[v] > 0 {
			all = append(all, chip(classOf(v), counted(c[v], v)))
		}
	}
	return all
}

// fact is a name and a text.
type fact struct{ name, words string }

// facts are a list of those that have a text.
func facts(all ...fact) page.Contents {
	var some page.Contents
	for _, f := range all {
		if f.words != "" {
			some = append(some, page.El("dt", page.Text(f.name)), page.El("dd", page.El("code", page.Text(f.words))))
		}
	}
	return page.When(len(some) > 0, page.El("dl", page.Class("facts"), some))
}
