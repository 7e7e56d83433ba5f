package player

import (
	"slices"
	"testing"
	"time"
)

// An alarm delivers whatever was asked of it before: later, earlier, not taken.
func TestAlarmDelivers(t *testing.T) {
	c := NewClock()
	t.Cleanup(c.(*wallClock).alarm.stop)
	c.After(time.Hour)
	for _, d := range []time.Duration{time.Millisecond, 0, -time.Second, 20 * time.Microsecond, 2 * time.Millisecond} {
		begun := c.Now()
		<-c.After(d)
		if took := c.Now() - begun; took < d {
			t.Errorf("an alarm of %v came after %v", d, took)
		}
	}
	// One that nobody took is not delivered in place of the next.
	c.After(0)
	begun := c.Now()
	<-c.After(3 * time.Millisecond)
	if took := c.Now() - begun; took < 3*time.Millisecond {
		t.Errorf("an alarm of 3 ms came after %v", took)
	}
}

// BenchmarkAlarm tells how late alarms are of a step's length.
func BenchmarkAlarm(b *testing.B) {
	c := NewClock()
	var late []time.Duration
	for b.Loop() {
		due := c.Now() + 2*time.Millisecond
		<-c.After(due - c.Now())
		late = append(late, c.Now()-due)
	}
	slices.Sort(late)
	b.ReportMetric(float64(late[len(late)/2].Microseconds()), "µs-late-p50")
	b.ReportMetric(float64(late[len(late)*9/10].Microseconds()), "µs-late-p90")
	b.ReportMetric(float64(late[len(late)*99/100].Microseconds()), "µs-late-p99")
}
