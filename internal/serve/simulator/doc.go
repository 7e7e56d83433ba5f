// Package simulator makes `vllm-vcr serve` do as llm-d-inference-sim: it has the flags of that program and what each
// does here, its fake metrics, and the values that can be changed while it runs. It sets the policy of package edge, and
// the options of the builtin frontend, which does the rest ([builtin.Simulator]).
package simulator
