// Package replay holds the checks of the replay suite: what is stored of a golden (static.go), what an engine registers
// with (schema.go), the token streams that it replays (fidelity.go) and every message of a recorded session (wire.go).
package replay
