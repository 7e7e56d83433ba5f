// Package simulator makes `vllm-vcr serve` do as llm-d-inference-sim: it has the flags of that program and what each
// does here, its fake metrics, and the values that can be changed while it runs. It sets the policies of package edge
// and of the builtin frontend; neither of them knows it.
package simulator
