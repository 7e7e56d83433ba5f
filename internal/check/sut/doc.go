// Package sut starts the subjects of a run, engines and frontends under test, or waits for those that somebody else
// starts, and connects them to a frontend or a player of ours.
package sut
