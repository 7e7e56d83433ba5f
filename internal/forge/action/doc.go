// Package action turns the inputs of the GitHub action into a command line of vllm-vcr.
//
// action.yml hands its inputs over in the environment: the input report-dir is INPUT_REPORT_DIR. [Read] takes them from
// there, [Inputs.Plan] says which command serves them, and nothing here has an effect on anything: the command
// "vllm-vcr action run" does what the plan says.
//
// An input that is empty is one that nobody filled in. One that the mode has no use for is an error, as it would be
// without effect and nobody would know.
package action

//go:generate go run ./docgen ../../../action.yml ../../../docs/action.md
