package compat

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// Decision is what a list of releases makes of a matrix.
type Decision struct {
	// Before and Lines are the matrix as it is and as it should be, for [Rewrite]. The
	// ProtocolRev of a line that moved is empty when the list does not name the commit;
	// see [Decision.Resolve].
	Before, Lines []Line
	// Notes are what a person should know, whether or not anything changes.
	Notes []string
}

// Changed reports whether the matrix is not as it should be.
func (d *Decision) Changed() bool { return len(d.Differences()) > 0 }

// Differences lists what changes.
func (d *Decision) Differences() []Difference { return Diff(d.Before, d.Lines) }

// Resolve asks for the commits that the list of releases did not name.
func (d *Decision) Resolve(commitOf func(Version) (string, error)) error {
	for i, l := range d.Lines {
		if l.ProtocolRev != "" {
			continue
		}
		v, err := ParseVersion(l.Tag)
		if err != nil {
			return err // not reached: the tag was made from a version
		}
		if d.Lines[i].ProtocolRev, err = commitOf(v); err != nil {
			return err
		}
	}
	return nil
}

func (d *Decision) note(format string, args ...any) {
	d.Notes = append(d.Notes, fmt.Sprintf(format, args...))
}

// watch is a decision being made.
type watch struct {
	Decision
	releases []Release
}

var errNoReleases = errors.New("the list has no release of vLLM: check that it is the right list")

// WatchStable decides what the releases make of the stable lines of a matrix, which
// has no errors. A line moves to its newest release, and away from one that was
// yanked; a line newer than all of the matrix is put on top and becomes the default;
// the oldest lines go while there are more than maxStable (zero: nine). A line that
// is new or moved is not validated: no goldens were captured from its release.
func (m *Matrix) WatchStable(releases []Release, maxStable int) (*Decision, error) {
	w := newWatch(m, releases)
	newest, err := w.newestStable()
	if err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(releases, func(r Release) bool { return !r.IsCandidate() }) {
		return nil, errNoReleases
	}
	for i, l := range w.Lines {
		if !l.IsTracker() {
			if err := w.moveStable(&w.Lines[i]); err != nil {
				return nil, err
			}
		}
	}
	w.insertNewer(newest)
	w.trim(cmp.Or(maxStable, defaultMaxStable))
	return &w.Decision, nil
}

// WatchRC decides what the releases make of the tracker rc of a matrix, which has no
// errors. It follows the highest candidate that is newer than the newest release, and
// goes when the release, or a later one, is out.
func (m *Matrix) WatchRC(releases []Release) (*Decision, error) {
	w := newWatch(m, releases)
	newest, err := w.newestStable()
	if err != nil {
		return nil, err
	}
	if len(releases) == 0 {
		return nil, errNoReleases
	}
	for _, r := range releases {
		if !r.IsCandidate() && r.Compare(newest) > 0 {
			newest = r.Version
		}
	}
	w.follow(newest)
	return &w.Decision, nil
}

func newWatch(m *Matrix, releases []Release) *watch {
	return &watch{Decision: Decision{Before: m.Lines, Lines: slices.Clone(m.Lines)}, releases: releases}
}

// newestStable is the newest release that the matrix has.
func (w *watch) newestStable() (newest Version, err error) {
	found := false
	for _, l := range w.Lines {
		if l.IsTracker() {
			continue
		}
		v, err := ParseVersion(l.Tag)
		if err != nil {
			return newest, fmt.Errorf("line %s: %w", l.Name, err)
		}
		if !found || v.Compare(newest) > 0 {
			newest, found = v, true
		}
	}
	if !found {
		return newest, errors.New("the matrix has no stable line")
	}
	return newest, nil
}

// best is the newest release of those that match and were not yanked.
func (w *watch) best(match func(Version) bool) (best Release, ok bool) {
	for _, r := range w.releases {
		if !r.Yanked && match(r.Version) && (!ok || r.Compare(best.Version) > 0) {
			best, ok = r, true
		}
	}
	return best, ok
}

// listed returns the release of a version.
func (w *watch) listed(v Version) (Release, bool) {
	i := slices.IndexFunc(w.releases, func(r Release) bool { return r.Version == v })
	if i < 0 {
		return Release{}, false
	}
	return w.releases[i], true
}

// moveStable brings a line to its newest release.
func (w *watch) moveStable(l *Line) error {
	current, err := ParseVersion(l.Tag)
	if err != nil {
		return fmt.Errorf("line %s: %w", l.Name, err)
	}
	best, ok := w.best(func(v Version) bool { return !v.IsCandidate() && v.Line() == l.Name })
	release, isListed := w.listed(current)
	switch {
	case ok && best.Compare(current) > 0:
		w.noteYanked(*l, release)
		w.move(l, best)
	case release.Yanked && ok:
		w.noteYanked(*l, release)
		w.note("line %s goes back to %s", l.Name, best.Tag())
		w.move(l, best)
	case release.Yanked:
		w.noteYanked(*l, release)
		w.note("line %s has no other release: remove it, or wait for one", l.Name)
	case !isListed:
		w.note("%s, which line %s stands for, is not in the list", l.Tag, l.Name)
	default:
		w.compareRev(*l, release)
	}
	return nil
}

func (w *watch) noteYanked(l Line, release Release) {
	if release.Yanked {
		w.note("%s, which line %s stands for, was yanked", l.Tag, l.Name)
	}
}

// compareRev notes a tag that is not what it was. What the line was validated with was
// built before, so nothing follows from it by itself.
func (w *watch) compareRev(l Line, release Release) {
	if release.Rev != "" && !sameCommit(release.Rev, l.ProtocolRev) {
		w.note("%s is commit %s in the list, but line %s has %s: find out which one the release was built from",
			l.Tag, release.Rev, l.Name, l.ProtocolRev)
	}
}

// move lets a line stand for a release.
func (w *watch) move(l *Line, to Release) {
	if l.PatchRepo != "" {
		w.note("line %s takes its protocol from a fork at %s, which may not fit %s", l.Name, l.PatchRev, to.Tag())
	}
	l.Tag, l.ProtocolRev, l.FidelityValidated = to.Tag(), to.Rev, false
}

// insertNewer puts the lines above the newest of the matrix on top, and makes the
// newest of them the default.
func (w *watch) insertNewer(newest Version) {
	for {
		next, ok := w.nextLine(newest)
		if !ok {
			return
		}
		best, _ := w.best(func(v Version) bool { return !v.IsCandidate() && v.Line() == next.Line() })
		l := Line{Name: next.Line(), Tag: best.Tag(), ProtocolRev: best.Rev}
		w.Lines = slices.Insert(w.Lines, place(w.Lines, l), l)
		makeDefault(w.Lines, l.Name)
		newest = best.Version
	}
}

// nextLine returns a release of the oldest line that is newer than that of a version.
func (w *watch) nextLine(than Version) (next Version, found bool) {
	for _, r := range w.releases {
		isNewer := cmp.Or(cmp.Compare(r.Major, than.Major), cmp.Compare(r.Minor, than.Minor)) > 0
		if r.Yanked || r.IsCandidate() || !isNewer {
			continue
		}
		if !found || r.Compare(next) < 0 {
			next, found = r.Version, true
		}
	}
	return next, found
}

// trim removes the oldest stable lines while there are more than the limit.
func (w *watch) trim(limit int) {
	for {
		count, oldest := 0, -1
		for i, l := range w.Lines {
			if l.IsTracker() {
				continue
			}
			count++
			if oldest < 0 || CompareLines(l.Name, w.Lines[oldest].Name) < 0 {
				oldest = i
			}
		}
		if count <= limit {
			return
		}
		w.Lines = slices.Delete(w.Lines, oldest, oldest+1)
	}
}

// follow brings the tracker rc to the highest candidate above the newest release.
func (w *watch) follow(newest Version) {
	best, ok := w.best(func(v Version) bool { return v.IsCandidate() && v.Compare(newest) > 0 })
	at := slices.IndexFunc(w.Lines, func(l Line) bool { return l.Name == RC })
	switch {
	case at < 0 && ok:
		l := Line{Name: RC, Tag: best.Tag(), ProtocolRev: best.Rev}
		w.Lines = slices.Insert(w.Lines, place(w.Lines, l), l)
	case at >= 0:
		w.followFrom(at, newest, best, ok)
	}
	if !slices.ContainsFunc(w.releases, func(r Release) bool { return r.IsCandidate() }) {
		w.note("the list has no release candidates: vLLM tags them in git, and publishes no wheels of them")
	}
}

// followFrom moves or removes the tracker rc that there is.
func (w *watch) followFrom(at int, newest Version, best Release, ok bool) {
	l := &w.Lines[at]
	current, err := ParseVersion(l.Tag)
	if err != nil {
		current = Version{} // a rule that the matrix breaks; whatever there is, is newer
	}
	release, isListed := w.listed(current)
	switch {
	case ok && (best.Compare(current) > 0 || release.Yanked):
		w.noteYanked(*l, release)
		w.move(l, best)
	case current.Compare(newest) < 0:
		w.note("%s is older than %s, and there is no newer candidate", l.Tag, newest.Tag())
		w.Lines = slices.Delete(w.Lines, at, at+1)
	case release.Yanked:
		w.noteYanked(*l, release)
	case !isListed:
		w.note("%s, which line %s stands for, is not in the list", l.Tag, l.Name)
	default:
		w.compareRev(*l, release)
	}
}
