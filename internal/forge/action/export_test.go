package action

import "slices"

// KeyInputs are the inputs that decide under which key goldens are kept, and where.
func KeyInputs() []string {
	return slices.Concat([]string{"mode", "cache", "cache-dir", "working-directory"}, selecting, narrowing)
}
