// Package report renders a conformance run for people and for machines. Every
// renderer reads the same [conformance.Report] and writes in the report's own
// order, so the output of equal runs is equal but for durations.
package report
