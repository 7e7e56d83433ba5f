package compat

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/base/tomlfile"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// releasesOf reads versions; one that was yanked has a "!" behind it.
func releasesOf(t *testing.T, versions string) []Release {
	t.Helper()
	var all []Release
	for _, s := range strings.Fields(versions) {
		s, yanked := strings.CutSuffix(s, "!")
		all = append(all, Release{Version: mustParse(t, s), Rev: revOf(s), Yanked: yanked})
	}
	return all
}

// revOf is the commit of a version in these tests.
func revOf(version string) string { return fmt.Sprintf("%040x", version) }

// matrixOf is a matrix that has these versions, the newest of them the default, all
// stable ones validated.
func matrixOf(t *testing.T, versions string) *Matrix {
	t.Helper()
	m := &Matrix{File: "compat.toml"}
	var newest Version
	for _, s := range strings.Fields(versions) {
		if s == Nightly {
			m.Lines = append(m.Lines, Line{Name: Nightly, Tag: Nightly, ProtocolRev: revOf(s)})
			continue
		}
		v := mustParse(t, s)
		l := Line{Name: v.Line(), Tag: v.Tag(), ProtocolRev: revOf(s), FidelityValidated: true}
		if v.IsCandidate() {
			l.Name, l.FidelityValidated = RC, false
		} else if v.Compare(newest) > 0 {
			newest = v
		}
		m.Lines = append(m.Lines, l)
	}
	makeDefault(m.Lines, newest.Line())
	return m
}

// shown is a decision in short: the differences, without commits, and the notes.
func shown(d *Decision, err error) string {
	if err != nil {
		return "error: " + err.Error()
	}
	var all []string
	for _, c := range d.Differences() {
		switch {
		case c.Removed():
			all = append(all, "-"+c.Line())
			continue
		case c.Added():
			all = append(all, "+"+c.Line()+" "+c.To.Tag)
		case c.Moved():
			all = append(all, c.Line()+" "+c.From.Tag+">"+c.To.Tag)
		default:
			all = append(all, c.Line())
		}
		if c.To.FidelityValidated != c.From.FidelityValidated {
			all[len(all)-1] += " gates " + yesNo(c.To.FidelityValidated)
		}
		if c.To.Default != c.From.Default {
			all[len(all)-1] += " default " + yesNo(c.To.Default)
		}
	}
	for _, n := range d.Notes {
		all = append(all, "note: "+n)
	}
	return strings.Join(all, "; ")
}

type watchTest struct {
	name, matrix, releases string
	max                    int
	want                   string
}

func runWatch(t *testing.T, tests []watchTest, decide func(*Matrix, watchTest) (*Decision, error)) {
	t.Helper()
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			require.NoDiff(t, gocmp.Diff(test.want, shown(decide(matrixOf(t, test.matrix), test))), "-want +got")
		})
	}
}

func TestWatchStable(t *testing.T) {
	tests := []watchTest{
		{name: "nothing new", matrix: "nightly 0.33.0 0.32.0", releases: "0.31.0 0.32.0 0.33.0 0.34.0rc1"},
		{name: "a patch of the newest", matrix: "0.33.0 0.32.0", releases: "0.32.0 0.33.0 0.33.1", want: "0.33 v0.33.0>v0.33.1 gates no"},
		{name: "a patch of an older line", matrix: "0.33.0 0.32.0", releases: "0.32.0 0.32.1 0.32.2 0.33.0", want: "0.32 v0.32.0>v0.32.2 gates no"},
		{name: "a corrected build", matrix: "0.33.0", releases: "0.33.0 0.33.0.post1", want: "0.33 v0.33.0>v0.33.0.post1 gates no"},
		{name: "patches of two digits", matrix: "0.33.9", releases: "0.33.9 0.33.10", want: "0.33 v0.33.9>v0.33.10 gates no"},
		{name: "a candidate of a patch does not count", matrix: "0.33.0", releases: "0.33.0 0.33.1rc1"},
		{
			name: "a new line", matrix: "nightly 0.33.0 0.32.0", releases: "0.32.0 0.33.0 0.34.0 0.34.1",
			want: "+0.34 v0.34.1 default yes; 0.33 default no",
		},
		{
			name: "several new lines", matrix: "0.33.0", releases: "0.36.0 0.34.0 0.33.0 0.35.1",
			want: "+0.36 v0.36.0 default yes; +0.35 v0.35.1; +0.34 v0.34.0; 0.33 default no",
		},
		{
			name: "a new line and a patch", matrix: "0.33.0 0.32.0", releases: "0.32.0 0.32.1 0.33.0 0.34.0",
			want: "+0.34 v0.34.0 default yes; 0.33 default no; 0.32 v0.32.0>v0.32.1 gates no",
		},
		{name: "another major version", matrix: "0.33.0", releases: "0.33.0 1.0.0", want: "+1.0 v1.0.0 default yes; 0.33 default no"},
		{
			name: "more than the matrix keeps", matrix: "0.33.0 0.32.0", releases: "0.32.0 0.33.0 0.34.0", max: 2,
			want: "+0.34 v0.34.0 default yes; 0.33 default no; -0.32",
		},
		{
			name: "the oldest go by version, not by place", matrix: "0.33.0 0.9.0 0.10.0", releases: "0.9.0 0.10.0 0.33.0 0.34.0", max: 3,
			want: "+0.34 v0.34.0 default yes; 0.33 default no; -0.9",
		},
		{
			name: "more new lines than the matrix keeps", matrix: "0.33.0 0.32.0", releases: "0.32.0 0.33.0 0.34.0 0.35.0 0.36.0", max: 2,
			want: "+0.36 v0.36.0 default yes; +0.35 v0.35.0; -0.33; -0.32",
		},
		{name: "a smaller matrix than before", matrix: "0.33.0 0.32.0 0.31.0", releases: "0.31.0 0.32.0 0.33.0", max: 2, want: "-0.31"},
		{
			name: "nine by default", matrix: "0.33.0 0.32.0 0.31.0 0.30.0 0.29.0 0.28.0 0.27.0 0.26.0 0.25.0",
			releases: "0.25.0 0.26.0 0.27.0 0.28.0 0.29.0 0.30.0 0.31.0 0.32.0 0.33.0 0.34.0",
			want:     "+0.34 v0.34.0 default yes; 0.33 default no; -0.25",
		},
		{name: "a gap is left alone", matrix: "0.33.0 0.31.0", releases: "0.31.0 0.32.0 0.33.0"},
		{name: "an older line is left out", matrix: "0.33.0", releases: "0.32.5 0.33.0"},
		{name: "a yanked patch", matrix: "0.33.0", releases: "0.33.0 0.33.1!"},
		{name: "a yanked new line", matrix: "0.33.0", releases: "0.33.0 0.34.0!"},
		{name: "a new line whose newest is yanked", matrix: "0.33.0", releases: "0.33.0 0.34.0 0.34.1!", want: "+0.34 v0.34.0 default yes; 0.33 default no"},
		{
			name: "on a yanked release, and there is a newer", matrix: "0.33.0", releases: "0.33.0! 0.33.1",
			want: "0.33 v0.33.0>v0.33.1 gates no; note: v0.33.0, which line 0.33 stands for, was yanked",
		},
		{
			name: "on a yanked release, and there is an older", matrix: "0.33.1", releases: "0.33.0 0.33.1!",
			want: "0.33 v0.33.1>v0.33.0 gates no; note: v0.33.1, which line 0.33 stands for, was yanked; note: line 0.33 goes back to v0.33.0",
		},
		{
			name: "on a yanked release, and there is no other", matrix: "0.33.0 0.32.0", releases: "0.32.0 0.33.0!",
			want: "note: v0.33.0, which line 0.33 stands for, was yanked; note: line 0.33 has no other release: remove it, or wait for one",
		},
		{name: "not in the list", matrix: "0.33.0 0.32.0", releases: "0.33.0", want: "note: v0.32.0, which line 0.32 stands for, is not in the list"},
		{name: "the list is older than the matrix", matrix: "0.33.1", releases: "0.33.0", want: "note: v0.33.1, which line 0.33 stands for, is not in the list"},
		{name: "trackers are no lines", matrix: "nightly 0.34.0rc1 0.33.0", releases: "0.33.0"},
		{name: "no releases", matrix: "0.33.0", releases: "", want: "error: " + errNoReleases.Error()},
		{name: "candidates only", matrix: "0.33.0", releases: "0.34.0rc1", want: "error: " + errNoReleases.Error()},
		{name: "no stable line", matrix: "nightly", releases: "0.33.0", want: "error: the matrix has no stable line"},
	}
	runWatch(t, tests, func(m *Matrix, test watchTest) (*Decision, error) {
		return m.WatchStable(releasesOf(t, test.releases), test.max)
	})
}

func TestWatchRC(t *testing.T) {
	const none = "note: the list has no release candidates: vLLM tags them in git, and publishes no wheels of them"
	tests := []watchTest{
		{name: "none", matrix: "0.33.0", releases: "0.33.0 0.33.0rc2"},
		{name: "the first", matrix: "nightly 0.33.0", releases: "0.33.0 0.34.0rc1", want: "+rc v0.34.0rc1"},
		{name: "the highest", matrix: "0.33.0", releases: "0.34.0rc10 0.34.0rc9 0.33.0 0.33.1rc1", want: "+rc v0.34.0rc10"},
		{name: "of a patch", matrix: "0.33.0", releases: "0.33.0 0.33.1rc0", want: "+rc v0.33.1rc0"},
		{name: "the next", matrix: "0.34.0rc1 0.33.0", releases: "0.33.0 0.34.0rc1 0.34.0rc2", want: "rc v0.34.0rc1>v0.34.0rc2"},
		{name: "as it is", matrix: "0.34.0rc2 0.33.0", releases: "0.33.0 0.34.0rc1 0.34.0rc2"},
		{
			name: "the release is out, and not in the matrix yet", matrix: "0.34.0rc2 0.33.0", releases: "0.33.0 0.34.0rc2 0.34.0",
			want: "-rc; note: v0.34.0rc2 is older than v0.34.0, and there is no newer candidate",
		},
		{
			name: "the release is out and yanked", matrix: "0.34.0rc2 0.33.0", releases: "0.33.0 0.34.0rc2 0.34.0!",
			want: "-rc; note: v0.34.0rc2 is older than v0.34.0, and there is no newer candidate",
		},
		{
			name: "older than the matrix", matrix: "0.26.1rc0 0.33.0", releases: "0.26.1rc0",
			want: "-rc; note: v0.26.1rc0 is older than v0.33.0, and there is no newer candidate",
		},
		{name: "stale, and there is a newer", matrix: "0.26.1rc0 0.33.0", releases: "0.33.0 0.34.0rc1", want: "rc v0.26.1rc0>v0.34.0rc1"},
		{name: "a yanked candidate", matrix: "0.33.0", releases: "0.33.0 0.34.0rc1!"},
		{
			name: "on a yanked candidate", matrix: "0.34.0rc2 0.33.0", releases: "0.33.0 0.34.0rc1 0.34.0rc2!",
			want: "rc v0.34.0rc2>v0.34.0rc1; note: v0.34.0rc2, which line rc stands for, was yanked",
		},
		{name: "on a yanked candidate, and there is no other", matrix: "0.34.0rc2 0.33.0", releases: "0.33.0 0.34.0rc2!", want: "note: v0.34.0rc2, which line rc stands for, was yanked"},
		{name: "not in the list", matrix: "0.34.0rc2 0.33.0", releases: "0.33.0 0.34.0rc1", want: "note: v0.34.0rc2, which line rc stands for, is not in the list"},
		{name: "a list without candidates", matrix: "0.34.0rc2 0.33.0", releases: "0.33.0", want: "note: v0.34.0rc2, which line rc stands for, is not in the list; " + none},
		{name: "no releases", matrix: "0.33.0", releases: "", want: "error: " + errNoReleases.Error()},
	}
	runWatch(t, tests, func(m *Matrix, test watchTest) (*Decision, error) { return m.WatchRC(releasesOf(t, test.releases)) })
}

func TestWatchNotes(t *testing.T) {
	m := matrixOf(t, "0.34.0rc1 0.33.0")
	m.Lines[0].ProtocolRev, m.Lines[1].ProtocolRev = "aaaaaaaaa", revOf("0.33.0")[:9]
	m.Lines[1].PatchRepo, m.Lines[1].PatchRev = "https://example.com/f", "ccccccccc"
	releases := releasesOf(t, "0.33.0 0.34.0rc1")
	want := "note: v0.34.0rc1 is commit " + revOf("0.34.0rc1") + " in the list, but line rc has aaaaaaaaa: find out which one the release was built from"
	require.Equal(t, shown(m.WatchRC(releases)), want, "rc")
	if got := shown(m.WatchStable(releases, 0)); got != "" {
		t.Errorf("an abbreviated commit: %s, want nothing", got)
	}
	want = "0.33 v0.33.0>v0.33.1 gates no; note: line 0.33 takes its protocol from a fork at ccccccccc, which may not fit v0.33.1"
	require.Equal(t, shown(m.WatchStable(releasesOf(t, "0.33.1"), 0)), want, "a fork")
}

func TestResolve(t *testing.T) {
	m := matrixOf(t, "nightly 0.33.0 0.32.0")
	releases := releasesOf(t, "0.32.1 0.33.0 0.34.0")
	for i := range releases {
		releases[i].Rev = "" // as an index has them
	}
	d, err := m.WatchStable(releases, 0)
	require.NoError(t, err)
	var asked []string
	err = d.Resolve(func(v Version) (string, error) {
		asked = append(asked, v.String())
		return revOf(v.String()), nil
	})
	require.NoError(t, err)
	require.NoDiff(t, gocmp.Diff([]string{"0.34.0", "0.32.1"}, asked), "asked for (-want +got)")
	if l := byName(d.Lines, "0.34"); l.ProtocolRev != revOf("0.34.0") {
		t.Errorf("0.34 has commit %s", l.ProtocolRev)
	}
	d, _ = m.WatchStable(releases, 0)
	broken := errors.New("the index is down")
	require.ErrorIs(t, d.Resolve(func(Version) (string, error) { return "", broken }), broken)
}

// Whatever the releases are: the matrix that is decided on can be written, has no
// errors, is not longer than allowed and newest first, keeps what nobody asked to change,
// and is not changed again by the same releases.
func TestWatchProperties(t *testing.T) {
	shipped, err := os.ReadFile("../compat.toml")
	require.NoError(t, err)
	for seed := range uint64(150) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 0))
			releases, limit := randomReleases(random), 1+random.IntN(12)
			text := checkWatch(t, shipped, releases, func(m *Matrix) (*Decision, error) { return m.WatchStable(releases, limit) })
			text = checkWatch(t, text, releases, func(m *Matrix) (*Decision, error) { return m.WatchRC(releases) })
			m, diagnostics := Policy{MaxStable: limit}.Parse("compat.toml", text)
			for _, f := range diagnostics {
				require.True(t, f.Code == codeGap || f.Code == codeRCTag, "diagnostic: %s", f)
			}
			checkKept(t, shipped, text, m)
		})
	}
}

func randomReleases(random *rand.Rand) []Release {
	var all []Release
	for minor := uint32(24); minor < 37; minor++ {
		for patch := range uint32(random.IntN(3)) {
			for _, at := range []stage{candidate, final, post} {
				v := Version{Minor: minor, Patch: patch, stage: at}
				if at == final || random.IntN(3) == 0 {
					all = append(all, Release{Version: v, Rev: revOf(v.String()), Yanked: random.IntN(5) == 0})
				}
			}
		}
	}
	all = append(all, Release{Version: Version{Minor: 30, Patch: 9}, Rev: revOf("0.30.9")}) // there is always one
	random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

// checkWatch lets a text follow the releases and returns it.
func checkWatch(t *testing.T, text []byte, releases []Release, decide func(*Matrix) (*Decision, error)) []byte {
	t.Helper()
	before, _ := Parse("compat.toml", text)
	d, err := decide(before)
	require.NoError(t, err)
	for _, c := range d.Differences() {
		checkDifference(t, c, releases)
	}
	edited, err := Rewrite("compat.toml", text, d.Lines)
	require.NoError(t, err)
	after, diagnostics := Parse("compat.toml", edited)
	require.True(t, !tomlfile.HasErrors(diagnostics), "diagnostics: %v", diagnostics)
	if got := Diff(d.Lines, after.Lines); len(got) > 0 {
		t.Errorf("the text is not what was decided: %v", got)
	}
	if again, err := decide(after); err != nil || again.Changed() {
		t.Errorf("the same releases change it again: %v, %v", again.Differences(), err)
	}
	return edited
}

// checkDifference checks that a line changed in no other way than a release asks for.
func checkDifference(t *testing.T, c Difference, releases []Release) {
	t.Helper()
	if c.Removed() {
		return
	}
	if c.Added() || c.Moved() {
		ok := slices.ContainsFunc(releases, func(r Release) bool { return r.Tag() == c.To.Tag && r.Rev == c.To.ProtocolRev && !r.Yanked })
		require.True(t, ok && !c.To.FidelityValidated, "%s: want a release that was not yanked, and no gate", c)
		return
	}
	from := c.From
	from.Default = c.To.Default
	require.True(t, sameEntry(from, c.To), "%s: want nothing but the default to change", c)
}

// checkKept checks that all comments of the file are still there, and all lines that
// neither moved nor went are as they were.
func checkKept(t *testing.T, before, after []byte, m *Matrix) {
	t.Helper()
	comments := func(data []byte) []string {
		var all []string
		for line := range strings.SplitSeq(string(data), "\n") {
			if _, comment, ok := strings.Cut(line, "#"); ok {
				all = append(all, comment)
			}
		}
		return all
	}
	require.NoDiff(t, gocmp.Diff(comments(before), comments(after)), "comments (-before +after)")
	if l := byName(m.Lines, Nightly); l.Tag != Nightly || l.ProtocolRev == "" {
		t.Errorf("nightly became %+v", l)
	}
	stable := slices.DeleteFunc(slices.Clone(m.Lines), Line.IsTracker)
	if !slices.IsSortedFunc(stable, func(a, b Line) int { return cmp.Compare(0, CompareLines(a.Name, b.Name)) }) {
		t.Errorf("not newest first: %v", m.names())
	}
}
