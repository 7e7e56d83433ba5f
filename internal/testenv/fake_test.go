package testenv

import (
	"fmt"
	"runtime"
	"testing"
)

// fakeTB is a test that records how it ended instead of ending the real one.
type fakeTB struct {
	testing.TB
	skipped, fatal, logged string
	cleanups               []func()
}

func newFakeTB(t *testing.T) *fakeTB { return &fakeTB{TB: t} }

// run runs f as a test would: on a goroutine that Skip and Fatal end, the clean-ups last.
func (f *fakeTB) run(test func(testing.TB)) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			for i := len(f.cleanups) - 1; i >= 0; i-- {
				f.cleanups[i]()
			}
		}()
		test(f)
	}()
	<-done
}

func (f *fakeTB) Helper()           {}
func (f *fakeTB) Cleanup(fn func()) { f.cleanups = append(f.cleanups, fn) }
func (f *fakeTB) Failed() bool      { return f.fatal != "" }

func (f *fakeTB) Logf(format string, args ...any) { f.logged += fmt.Sprintf(format, args...) }

func (f *fakeTB) Skip(args ...any) {
	f.skipped = fmt.Sprint(args...)
	runtime.Goexit()
}

func (f *fakeTB) Skipf(format string, args ...any) { f.Skip(fmt.Sprintf(format, args...)) }

func (f *fakeTB) Fatal(args ...any) {
	f.fatal = fmt.Sprint(args...)
	runtime.Goexit()
}

func (f *fakeTB) Fatalf(format string, args ...any) { f.Fatal(fmt.Sprintf(format, args...)) }
