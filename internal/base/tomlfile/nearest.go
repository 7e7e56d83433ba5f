package tomlfile

import "strings"

// Nearest returns the known word that a reader most likely meant by word, and
// false when none is near enough to be worth suggesting. Case is ignored; up to
// a third of the letters may differ, but always two of them.
func Nearest(word string, known []string) (string, bool) {
	limit := max(2, len(word)/3)
	best, bestDistance := "", limit+1
	for _, k := range known {
		if d := distance(strings.ToLower(word), strings.ToLower(k), limit); d < bestDistance {
			best, bestDistance = k, d
		}
	}
	// A suggestion that shares no letter with a very short word is noise.
	if bestDistance > limit || bestDistance >= max(len(word), len(best)) {
		return "", false
	}
	return best, true
}

// distance counts the insertions, deletions, replacements and swaps of
// neighbours that turn a into b, in bytes. It gives up with limit+1 when the
// lengths alone are further apart than limit.
func distance(a, b string, limit int) int {
	if len(a)-len(b) > limit || len(b)-len(a) > limit {
		return limit + 1
	}
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+unequal(a[i-1], b[j-1]))
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}

func unequal(a, b byte) int {
	if a == b {
		return 0
	}
	return 1
}
