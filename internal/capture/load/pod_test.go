package load

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

func put(t *testing.T, d Dir, name, text string) {
	t.Helper()
	require.NoError(t, os.WriteFile(d.path(name), []byte(text), 0o666))
}

// The folder goes through its life: begun, done, ready, fetched.
func TestLife(t *testing.T) {
	d := Dir{t.TempDir()}
	steps := []struct {
		name string
		do   func() error
		want string // part of the error, "" for none
	}{
		{"begin", d.Begin, ""},
		{"not ready", d.IsReady, "ready is not there yet"},
		{"release too early", d.Release, "ready is not there yet"},
		{"tell", func() error { return d.Tell(Done, "") }, ""},
		{"files", func() error { put(t, d, Trace, "x"); return d.Wait(t.Context(), time.Minute, Trace, Done) }, ""},
		{"get ready", func() error { return d.Tell(Ready, "") }, ""},
		{"ready", d.IsReady, ""},
		{"release", d.Release, ""},
		{"release again", d.Release, ""},
		{"wait for that", func() error { return d.Wait(t.Context(), time.Minute, Fetched) }, ""},
	}
	for _, step := range steps {
		err := step.do()
		if step.want == "" && err != nil || step.want != "" && (err == nil || !strings.Contains(err.Error(), step.want)) {
			t.Fatalf("%s: got %v, want %q", step.name, err, step.want)
		}
	}
	entries, err := os.ReadDir(d.Path)
	require.True(t, err == nil && len(entries) == 5, "left %v, %v; want the five files that were told", entries, err)
}

func TestFailedLoad(t *testing.T) {
	d := Dir{t.TempDir()}
	require.NoError(t, errors.Join(d.Tell(FailedFile, "status 500\n"), d.Tell(FailedFile, "another\n")))
	for name, err := range map[string]error{"ready": d.IsReady(), "release": d.Release()} {
		require.True(t, err != nil && err.Error() == "the load has failed: status 500", "%s: got %v", name, err)
	}
}

func TestOneLoadAFolder(t *testing.T) {
	for _, name := range []string{Begun, Done, Ready, Fetched, FailedFile, ReportFile, Requests} {
		t.Run(name, func(t *testing.T) {
			d := Dir{t.TempDir()}
			put(t, d, name, "")
			require.ErrorContains(t, d.Begin(), name+" exists: another load wrote to this folder")
		})
	}
	d := Dir{t.TempDir()}
	put(t, d, Trace, "the tap may be faster")
	results := make(chan error)
	for range 8 {
		go func() { results <- d.Begin() }()
	}
	begun := 0
	for range 8 {
		if err := <-results; err == nil {
			begun++
		}
	}
	require.Equal(t, begun, 1, "loads have begun in one folder")
}

func TestBadFolders(t *testing.T) {
	dir := t.TempDir()
	put(t, Dir{dir}, "file", "")
	for name, want := range map[string]string{
		"none": "no folder for the capture: ",
		"file": "want the folder of the capture, not a file",
	} {
		require.ErrorContains(t, (Dir{filepath.Join(dir, name)}).Begin(), want)
	}
	if err := (Dir{filepath.Join(dir, "none")}).Tell(Done, ""); err == nil || !strings.HasPrefix(err.Error(), "tell load-done: ") {
		t.Errorf("got %v", err)
	}
}

func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, start := Dir{t.TempDir()}, time.Now()
		time.AfterFunc(10*time.Second, func() { put(t, d, Trace, "") })
		time.AfterFunc(20*time.Second, func() { put(t, d, Steps, "") })
		if err := d.Wait(t.Context(), time.Minute, Steps, Trace); err != nil || time.Since(start) < 20*time.Second || time.Since(start) > 20*time.Second+look {
			t.Errorf("%v after %v, want both files after 20s", err, time.Since(start))
		}
		start = time.Now()
		err := d.Wait(t.Context(), time.Minute, Trace, Frames)
		var late *LateError
		if !errors.As(err, &late) || err.Error() != d.path(Frames)+" did not come up within 1m0s" || time.Since(start) != time.Minute {
			t.Errorf("got %v after %v", err, time.Since(start))
		}
		enough := errors.New("enough")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(enough) })
		require.ErrorIs(t, d.Wait(ctx, time.Minute, Frames), enough)
	})
}
