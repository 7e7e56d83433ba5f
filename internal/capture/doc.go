// Package capture takes captures to their end: from a target to registered goldens and the text of a pull request.
//
// A target is captured on this machine, or by a job of a cluster ([Run]). Either leaves a [Recording]: what the tap and
// the client of one engine's life wrote. [Accept] holds a recording to its target and makes goldens of it, or tells
// everything that is against it; [Describe] says what came of it, for whoever reviews the change.
package capture
