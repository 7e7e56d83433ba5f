package pypi

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/vllm-vcr/conformance/compat"
)

var separators = regexp.MustCompile(`[-_.]+`)

// normalName is the name of a project as an index spells it (PEP 503).
func normalName(project string) string {
	return strings.ToLower(separators.ReplaceAllString(project, "-"))
}

// A wheelName is the name of a wheel, taken apart: vllm-0.23.0-2-cp38-abi3-manylinux_2_28_x86_64.whl.
type wheelName struct {
	project, version string
	build            int // 0 without one; a file of a higher one replaces the others
	platforms        []string
}

func parseWheelName(name string) (w wheelName, ok bool) {
	stem, isWheel := strings.CutSuffix(name, ".whl")
	parts := strings.Split(stem, "-")
	if !isWheel || len(parts) != 5 && len(parts) != 6 {
		return w, false
	}
	w = wheelName{project: parts[0], version: parts[1], platforms: strings.Split(parts[len(parts)-1], ".")}
	if len(parts) == 6 {
		digits := len(parts[2]) - len(strings.TrimLeft(parts[2], "0123456789"))
		var err error
		if w.build, err = strconv.Atoi(parts[2][:digits]); err != nil {
			return w, false
		}
	}
	return w, true
}

// sources are how names of source archives end.
var sources = []string{".tar.gz", ".zip"}

// isArchive tells whether a file is a wheel or a source archive, by its name.
func isArchive(name string) bool {
	_, isWheel := parseWheelName(name)
	return isWheel || slices.ContainsFunc(sources, func(suffix string) bool { return strings.HasSuffix(name, suffix) })
}

// buildOf is what a file is of.
func buildOf(project, name string) (compat.Build, error) {
	if w, ok := parseWheelName(name); ok && normalName(w.project) == project {
		return compat.ParseBuild(w.version)
	}
	for _, suffix := range sources {
		stem, isSource := strings.CutSuffix(name, suffix)
		dash := strings.LastIndex(stem, "-")
		if isSource && dash > 0 && normalName(stem[:dash]) == project {
			return compat.ParseBuild(stem[dash+1:])
		}
	}
	return compat.Build{}, fmt.Errorf("%q is no file of a version of %s", name, project)
}

// machines are the names that wheels have for what Go calls the architecture.
var machines = map[string]string{"amd64": "x86_64", "arm64": "aarch64"}

// Wheel returns the wheel of the release for a system and an architecture, as Go names them; of several builds the last
// one. A wheel that was yanked is none.
func (r Release) Wheel(goos, goarch string) (File, error) {
	machine := machines[goarch]
	if goos != "linux" || machine == "" {
		return File{}, fmt.Errorf("release %s: there are wheels for linux on amd64 and arm64, not for %s on %s",
			r.Version, goos, goarch)
	}
	return r.choose("linux on "+goarch, func(platform string) bool {
		isLinux := strings.HasPrefix(platform, "manylinux") || strings.HasPrefix(platform, "linux_")
		return isLinux && strings.HasSuffix(platform, "_"+machine)
	})
}

// choose returns the last build of the wheels for a platform.
func (r Release) choose(what string, fits func(platform string) bool) (File, error) {
	var best File
	build, yanked, reason := -1, false, ""
	var names []string
	for _, f := range r.Files {
		names = append(names, f.Name)
		w, ok := parseWheelName(f.Name)
		switch {
		case !ok || !anyOf(w.platforms, fits):
		case f.Yanked:
			yanked, reason = true, cmp.Or(reason, f.Reason)
		case w.build > build:
			best, build = f, w.build
		}
	}
	switch {
	case build >= 0:
		return best, nil
	case yanked && reason != "":
		return File{}, fmt.Errorf("release %s was yanked from the index (wheel for %s): %q", r.Version, what, reason)
	case yanked:
		return File{}, fmt.Errorf("release %s was yanked from the index (wheel for %s)", r.Version, what)
	}
	return File{}, fmt.Errorf("release %s has no wheel for %s: it has %q", r.Version, what, names)
}

func anyOf(values []string, fits func(string) bool) bool {
	for _, v := range values {
		if fits(v) {
			return true
		}
	}
	return false
}
