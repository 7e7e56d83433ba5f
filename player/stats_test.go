package player

import (
	"testing"
)

// stats returns the envelope's scheduler statistics, nil when it has none.
func (e *envelope) stats(t *testing.T) map[string]any {
	t.Helper()
	if e.SchedulerStats == nil {
		return nil
	}
	return decoded(t, e.SchedulerStats).(map[string]any)
}
