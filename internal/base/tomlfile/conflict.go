package tomlfile

import "strings"

// conflictMarks begin the lines that git leaves around what a merge could not
// decide, seven characters each.
var conflictMarks = []string{"<<<<<<<", "|||||||", "=======", ">>>>>>>"}

// conflictMark returns the mark that a line is, or "".
func conflictMark(line string) string {
	line = strings.TrimSuffix(line, "\r")
	for _, mark := range conflictMarks {
		if rest, ok := strings.CutPrefix(line, mark); ok && (rest == "" || rest[0] == ' ') {
			return mark
		}
	}
	return ""
}

// conflict finds the mark of an unfinished merge in a text that is not TOML at
// the given line. A string of several lines may hold such a mark too, so it counts
// when it is what is wrong, or when it is the first of a whole conflict.
func conflict(src string, wrong int) (line int, mark string) {
	at, first := 0, 0
	for text := range strings.SplitSeq(src, "\n") {
		at++
		mark := conflictMark(text)
		switch {
		case mark == "":
		case at == wrong:
			return at, mark
		case mark == conflictMarks[0] && first == 0:
			first = at
		case mark == conflictMarks[3] && first != 0:
			return first, conflictMarks[0]
		}
	}
	return 0, ""
}
