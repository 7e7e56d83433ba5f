// Package plural counts things in sentences.
package plural

import "strconv"

// Count returns "1 case" for 1, and "2 cases" for any other number. The noun forms its plural with s.
func Count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return strconv.Itoa(n) + " " + noun + "s"
}
