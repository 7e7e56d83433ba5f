package compat

import (
	"fmt"
	"strings"
)

const (
	minRev   = 7  // git's own shortest abbreviation
	quietRev = 9  // what a released wheel carries of its commit
	fullRev  = 40 // a whole commit
)

// check checks what an entry shows on its own.
func (e *entry) check() {
	e.checkRev("protocol_rev", e.ProtocolRev)
	e.checkRev("patch_rev", e.PatchRev)
	e.checkPatch()
	switch {
	case e.Name == "" || e.Tag == "": // reported as missing
	case e.IsTracker():
		e.checkTracker()
	default:
		e.checkStable()
	}
}

func (e *entry) fail(code, key, message, hint string) {
	e.table.Report(code, Error, key, message, hint)
}

func (e *entry) warn(code, key, message, hint string) {
	e.table.Report(code, Warning, key, message, hint)
}

// title names the entry in a message.
func (e *entry) title() string {
	if e.IsTracker() {
		return "tracker " + e.Name
	}
	return "line " + e.Name
}

func (e *entry) checkRev(key, rev string) {
	switch {
	case rev == "": // absent, or reported as missing
	case strings.Trim(rev, "0123456789abcdef") != "":
		e.fail(codeRev, key, fmt.Sprintf("%s %q is not a git commit", key, rev), "write 9 to 40 lowercase hexadecimal digits")
	case len(rev) < minRev || len(rev) > fullRev:
		e.fail(codeRev, key, fmt.Sprintf("%s has %d digits, a git commit has 7 to 40", key, len(rev)), "write 9 to 40 of them")
	case len(rev) < quietRev:
		e.warn(codeRev, key, fmt.Sprintf("%s has only %d digits, which may become ambiguous", key, len(rev)), "write 9 to 40 of them")
	}
}

func (e *entry) checkPatch() {
	if (e.PatchRepo == "") == (e.PatchRev == "") {
		return
	}
	have, missing := "patch_repo", "patch_rev"
	if e.PatchRepo == "" {
		have, missing = missing, have
	}
	e.fail(codeHalfPatch, have, fmt.Sprintf("%s has %s without %s", e.title(), have, missing), "a fork needs patch_repo and patch_rev")
}

func (e *entry) checkTracker() {
	const hint = "only a released line can promise anything"
	if e.Default {
		e.fail(codeTracker, "default", e.title()+" is the default", hint)
	}
	if e.FidelityValidated {
		e.fail(codeTracker, "fidelity_validated", e.title()+" is validated", hint)
	}
	if e.Name == Nightly {
		if e.Tag != Nightly {
			e.fail(codeNightlyTag, "tag", fmt.Sprintf("the tag of nightly is %q", e.Tag), `write tag = "nightly"`)
		}
		return
	}
	v, err := ParseVersion(e.Tag)
	if err != nil || !v.IsCandidate() {
		e.fail(codeRCTag, "tag", fmt.Sprintf("the tag of rc is %q, which is no release candidate", e.Tag), "write a tag such as v0.34.0rc1")
		return
	}
	e.version = v
}

func (e *entry) checkStable() {
	name, ok := MinorLine(e.Name)
	if !ok || name != e.Name {
		hint := "write major.minor, such as 0.33, or a tracker: nightly, rc"
		if ok {
			hint = fmt.Sprintf("write line = %q", name)
		}
		e.fail(codeStableTag, "line", fmt.Sprintf("line %q is neither major.minor nor a tracker", e.Name), hint)
		return
	}
	v, err := ParseVersion(e.Tag)
	hint := fmt.Sprintf("write a release of the line, such as v%s.0", name)
	switch {
	case err != nil:
		e.fail(codeStableTag, "tag", "tag "+err.Error(), hint)
	case v.Line() != e.Name:
		e.fail(codeStableTag, "tag", fmt.Sprintf("tag %s is a release of line %s, not of %s", e.Tag, v.Line(), e.Name), hint)
	case v.IsCandidate():
		e.fail(codeStableTag, "tag", fmt.Sprintf("tag %s is a release candidate, line %s is stable", e.Tag, e.Name), "candidates belong to the tracker rc")
	default:
		e.version, e.isValid = v, true
	}
}
