// Package check has what the suites of a conformance run share: cases, goldens, failures and their codes, and the subjects:
// how an engine or a frontend under test is started, reached and ended. The packages below it are the suites. Package
// conformance plans and runs the cases, and exports these types.
package check
