package report

import (
	"cmp"
	"strconv"
	"strings"
)

// compareLines orders the names of lines as a support window does: trackers
// first, then the newest. Names of no known form come last, by the alphabet.
func compareLines(a, b string) int {
	rankA, majorA, minorA := lineRank(a)
	rankB, majorB, minorB := lineRank(b)
	return cmp.Or(rankA-rankB, majorB-majorA, minorB-minorA, strings.Compare(a, b))
}

func lineRank(name string) (rank, major, minor int) {
	switch name {
	case "nightly":
		return 0, 0, 0
	case "rc":
		return 1, 0, 0
	}
	first, second, ok := strings.Cut(name, ".")
	major, err := strconv.Atoi(first)
	minor, err2 := strconv.Atoi(second)
	if !ok || err != nil || err2 != nil {
		return 3, 0, 0
	}
	return 2, major, minor
}
