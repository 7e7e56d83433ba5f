// Package action turns the inputs of the GitHub action into a command line of vllm-vcr.
//
// action.yml hands its inputs over in the environment: the input report-dir is INPUT_REPORT_DIR. [Read] takes them from
// there, [Inputs.Plan] says which command serves them, and nothing of that has an effect: the command
// "vllm-vcr action run" does what the plan says.
//
// An empty input counts as not given. An input that the mode does not use is an error, as it would have no effect.
//
// [TokenService] requests the tokens with which a job proves its identity to a cloud or a cluster.
package action

//go:generate go test -run ^TestDocumentationIsCurrent$ -count=1 . -update
