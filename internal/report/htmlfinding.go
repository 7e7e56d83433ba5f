package report

import (
	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/report/page"
)

// toFinding refers to the documentation of a code. Nothing else leads out of the
// page.
func toFinding(code conformance.Code, title string) page.Attribute {
	return page.Attr("href", HelpURL(code, title))
}
