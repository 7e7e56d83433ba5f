package golden

import "testing"

func pipe(t *testing.T, _ string) { t.Skip("there are no such pipes") }
