package compat

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Version is a released version of vLLM: MAJOR.MINOR.PATCH, a candidate of it
// (rcN), or a corrected build of it (.postN). The zero Version is 0.0.0. Versions
// are comparable with ==.
type Version struct {
	Major, Minor, Patch uint32

	stage  stage
	number uint32 // the N of rcN or .postN
}

// stage orders what shares a MAJOR.MINOR.PATCH.
type stage int8

const (
	candidate stage = iota - 1
	final
	post
)

// ParseVersion reads a version or a tag: "0.33.0", "v0.33.0", "v0.26.1rc0",
// "0.25.1.post1". Anything else is an error, among it two-part versions,
// development builds and local builds (0.33.0+cpu), because none of them names a
// release.
//
// The .postN form is ours: vLLM has published such releases, and a matrix that
// cannot name them cannot follow them.
func ParseVersion(s string) (Version, error) {
	v, err := parseVersion(strings.TrimLeft(strings.TrimSpace(s), "v"))
	if err != nil {
		return Version{}, fmt.Errorf("%q is not a version of the form 0.33.0, 0.33.0rc1 or 0.33.0.post1", s)
	}
	return v, nil
}

var errNotVersion = errors.New("not a version")

func parseVersion(s string) (v Version, err error) {
	parts := strings.Split(s, ".")
	if len(parts) == 4 {
		number, found := strings.CutPrefix(parts[3], "post")
		if !found {
			return Version{}, errNotVersion
		}
		v.stage = post
		if v.number, err = parseNumber(number); err != nil {
			return Version{}, err
		}
		parts = parts[:3]
	}
	if len(parts) != 3 {
		return Version{}, errNotVersion
	}
	patch, number, found := strings.Cut(parts[2], "rc")
	if found {
		if v.stage == post {
			return Version{}, errNotVersion
		}
		v.stage = candidate
		if v.number, err = parseNumber(number); err != nil {
			return Version{}, err
		}
	}
	var errs [3]error
	v.Major, errs[0] = parseNumber(parts[0])
	v.Minor, errs[1] = parseNumber(parts[1])
	v.Patch, errs[2] = parseNumber(patch)
	return v, errors.Join(errs[:]...)
}

// parseNumber reads digits, and only digits, that fit 32 bits.
func parseNumber(s string) (uint32, error) {
	n, err := strconv.ParseUint(s, 10, 32)
	return uint32(n), err
}

// Compare returns a negative number, zero or a positive number when v is older
// than, the same as or newer than w: by major, minor and patch, then candidates
// before the release and the release before its corrected builds, each by number.
func (v Version) Compare(w Version) int {
	return cmp.Or(
		cmp.Compare(v.Major, w.Major),
		cmp.Compare(v.Minor, w.Minor),
		cmp.Compare(v.Patch, w.Patch),
		cmp.Compare(v.stage, w.stage),
		cmp.Compare(v.number, w.number),
	)
}

// Nearer reports whether v rather than w stands in for a release that is not
// there: the newest before it, or the oldest if there is none before.
func (v Version) Nearer(w, release Version) bool {
	vBefore, wBefore := v.Compare(release) <= 0, w.Compare(release) <= 0
	switch {
	case vBefore != wBefore:
		return vBefore
	case vBefore:
		return v.Compare(w) > 0
	}
	return v.Compare(w) < 0
}

// IsCandidate reports whether v is a release candidate (rcN).
func (v Version) IsCandidate() bool { return v.stage == candidate }

// Line is the line that v belongs to, such as "0.33".
func (v Version) Line() string { return fmt.Sprintf("%d.%d", v.Major, v.Minor) }

// String is the version without the v of its tag, such as "0.25.1.post1".
func (v Version) String() string {
	s := fmt.Sprintf("%d.%d.%d", v.Major, v.Minor, v.Patch)
	switch v.stage {
	case candidate:
		return fmt.Sprintf("%src%d", s, v.number)
	case post:
		return fmt.Sprintf("%s.post%d", s, v.number)
	}
	return s
}

// Tag is the git tag of v in vllm.git, such as "v0.25.1.post1".
func (v Version) Tag() string { return "v" + v.String() }

// MinorLine returns the major.minor that a tag or a version string begins with,
// and false when it does not begin with one. It accepts what [ParseVersion]
// refuses: "0.23.0.dev1+g16e9117" is of line "0.23".
func MinorLine(s string) (string, bool) {
	major, rest, found := strings.Cut(strings.TrimLeft(strings.TrimSpace(s), "v"), ".")
	minor := rest[:leadingDigits(rest)]
	if !found || major == "" || leadingDigits(major) != len(major) || minor == "" {
		return "", false
	}
	return major + "." + minor, true
}

func leadingDigits(s string) int {
	n := 0
	for n < len(s) && '0' <= s[n] && s[n] <= '9' {
		n++
	}
	return n
}
