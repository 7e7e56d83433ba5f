package compat

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"github.com/vllm-vcr/conformance/internal/base/lazyregexp"
)

// Build is what a wheel of vLLM is called: by the version that it is a release of,
// as a development build on the way to that version (0.34.0.dev123+g1a2b3c4d5), or
// as a local build of either (0.33.0+cpu). Only one that is neither of the last two
// names a release. Builds are comparable with ==.
type Build struct {
	Version Version // that it is of, or on the way to

	development bool
	number      uint32 // of the development build
	local       string // lowercase, its parts separated by dots; "" without
}

// ParseBuild reads all that [ParseVersion] does, and what development and local
// builds are called: "0.11.1rc8.dev14+gaa384b3c0.cu130", "0.33.0+cpu". The local
// part may be spelled in every way that PEP 440 allows, and a ".dev" without a
// number has the number 0.
func ParseBuild(s string) (Build, error) {
	b, err := parseBuild(strings.TrimLeft(strings.TrimSpace(s), "v"))
	if err != nil {
		return Build{}, fmt.Errorf("%q is not a version or a build of the form 0.34.0.dev123+g1a2b3c4d5 or 0.33.0+cpu", s)
	}
	return b, nil
}

var (
	localPattern = lazyregexp.New(`^[a-z0-9]+(\.[a-z0-9]+)*$`)
	toDots       = strings.NewReplacer("-", ".", "_", ".")
	digits       = lazyregexp.New(`^[0-9]+$`)
)

func parseBuild(s string) (b Build, err error) {
	public, local, isLocal := strings.Cut(s, "+")
	if isLocal {
		b.local = toDots.Replace(strings.ToLower(local))
		if !localPattern().MatchString(b.local) {
			return b, errNotVersion
		}
	}
	version, number, isDevelopment := strings.Cut(public, ".dev")
	if isDevelopment {
		b.development = true
		if b.number, err = parseNumber(cmp.Or(number, "0")); err != nil {
			return b, err
		}
	}
	b.Version, err = parseVersion(version)
	return b, err
}

// Compare returns a negative number, zero or a positive number when b is older
// than, the same as or newer than c, as PEP 440 orders them: the development builds
// of a version before its candidates, those of a candidate or a corrected build
// before this one, and what has no local part before what has one.
func (b Build) Compare(c Build) int {
	v, w := b.Version, c.Version
	return cmp.Or(
		cmp.Compare(v.Major, w.Major),
		cmp.Compare(v.Minor, w.Minor),
		cmp.Compare(v.Patch, w.Patch),
		cmp.Compare(b.stage(), c.stage()),
		cmp.Compare(v.number, w.number),
		cmp.Compare(b.done(), c.done()),
		cmp.Compare(b.number, c.number),
		compareLocal(b.local, c.local),
	)
}

// stage is that of the version, but what leads to a final one comes before its candidates.
func (b Build) stage() stage {
	if b.development && b.Version.stage == final {
		return candidate - 1
	}
	return b.Version.stage
}

// done is 0 for what leads to its version.
func (b Build) done() int {
	if b.development {
		return 0
	}
	return 1
}

// compareLocal compares part by part: numbers as such, and above words.
func compareLocal(a, b string) int {
	if a == "" || b == "" {
		return cmp.Compare(len(a), len(b))
	}
	left, right := strings.Split(a, "."), strings.Split(b, ".")
	for i := range min(len(left), len(right)) {
		if c := comparePart(left[i], right[i]); c != 0 {
			return c
		}
	}
	return cmp.Compare(len(left), len(right))
}

func comparePart(a, b string) int {
	aNumber, bNumber := digits().MatchString(a), digits().MatchString(b)
	switch {
	case aNumber && bNumber:
		a, b = strings.TrimLeft(a, "0"), strings.TrimLeft(b, "0")
		return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
	case aNumber:
		return 1
	case bNumber:
		return -1
	}
	return cmp.Compare(a, b)
}

// IsRelease reports whether b names a release: the one that Version is.
func (b Build) IsRelease() bool { return !b.development && b.local == "" }

// IsDevelopment reports whether b is a development build (.devN).
func (b Build) IsDevelopment() bool { return b.development }

// IsCandidate reports whether b is a release candidate, or a local build of one.
func (b Build) IsCandidate() bool { return b.Version.IsCandidate() && !b.development }

// Line is the line that b belongs to, such as "0.34".
func (b Build) Line() string { return b.Version.Line() }

// revision is the commit, or the day of a tree that was changed since.
var revision = lazyregexp.New(`^(g[0-9a-f]{7,}|d[0-9]{8})$`)

// Variant is which of several wheels of one and the same source b is, such as "cpu"
// or "cu130": its local part but for the commit. It is "" for the usual one.
func (b Build) Variant() string {
	var kept []string
	for part := range strings.SplitSeq(b.local, ".") {
		if !revision().MatchString(part) {
			kept = append(kept, part)
		}
	}
	return strings.Join(kept, ".")
}

// String is the name without the v of a tag, such as "0.34.0.dev123+g1a2b3c4d5".
func (b Build) String() string {
	s := b.Version.String()
	if b.development {
		s += ".dev" + strconv.FormatUint(uint64(b.number), 10)
	}
	if b.local != "" {
		s += "+" + b.local
	}
	return s
}
