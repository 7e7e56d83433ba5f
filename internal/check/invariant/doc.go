// Package invariant judges what an engine says by itself and by what it was asked, without a recording to compare with: what
// must hold of every engine of a line, whatever tokens it makes and whenever it makes them.
package invariant

import _ "embed"

// Codes explains the codes of the invariants; see [check.Check].
//
//go:embed invariants.md
var Codes string
