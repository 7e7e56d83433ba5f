package coverage

import (
	_ "embed"
	"strings"
	"sync"
)

//go:embed unreachable.txt
var unreachableText string

// unreachable are the reasons why no golden can show something, by its name.
var unreachable = sync.OnceValue(func() map[string]string {
	reasons := map[string]string{}
	reason := ""
	for line := range strings.Lines(unreachableText) {
		line = strings.TrimSpace(line)
		switch {
		case line == "" || strings.HasPrefix(line, "#"):
		case strings.HasPrefix(line, "["):
			reason = strings.Trim(line, "[]")
		default:
			reasons[line] = reason
		}
	}
	return reasons
})
