// Package capture makes registered goldens of recordings.
//
// A [Recording] is what the tap and the client of one engine's life wrote. Package local makes one on this machine,
// package remote with a Job of a cluster. [Accept] compares a recording with its target and registers its goldens, or
// returns everything that is wrong with it; [Describe] writes the text of the pull request.
package capture
