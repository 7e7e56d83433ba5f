// Package check holds what every check of a conformance run shares: the case that it judges, the golden that the case is
// about, the failures that it finds and their codes. The packages below it are the checks themselves; package conformance
// plans and runs them, and exports these types.
package check
