package local

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/internal/capture"
	"github.com/vllm-vcr/conformance/internal/capture/load"
	"github.com/vllm-vcr/conformance/internal/capture/target"
	"github.com/vllm-vcr/conformance/internal/frontends/vllmrs"
	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/trace"
)

// localVersion is the release whose frontend these tests start.
const localVersion = "0.33.0"

// A bench is the programs of captures on this machine: the frontend of a release, this vllm-vcr, and in place of the
// engine its player. Each is behind a script that notes its process id in a file of its name.
type bench struct {
	opt  Options
	pids string // folder
}

// newBench returns programs, of which the engine runs a script that has the port of its handshake as $port and vllm-vcr
// as $vcr.
func newBench(t *testing.T, vcr, engine string) bench {
	t.Helper()
	dir := t.TempDir()
	b := bench{pids: filepath.Join(dir, "pids")}
	require.NoError(t, os.Mkdir(b.pids, 0o755))
	script := func(name, body string) string {
		path := filepath.Join(dir, name)
		text := fmt.Sprintf("#!/bin/sh\necho $$ >'%s/%s'\nvcr='%s'\n%s\n", b.pids, name, vcr, body)
		testenv.WriteProgram(t, path, text)
		return path
	}
	port := `while [ $# -gt 1 ]; do [ "$1" != --data-parallel-rpc-port ] || port=$2; shift; done` + "\n"
	b.opt = Options{
		Dir: filepath.Join(dir, "work"),
		Engines: map[string]Engine{localVersion: {
			Release: localVersion, Home: dir, Python: script(engineName, port+engine), Origin: "a player",
			VLLMRS: script(frontendName, fmt.Sprintf(`exec '%s' "$@"`, testenv.Frontend(t, localVersion))),
		}},
		Models: map[string]string{"tiny": testenv.ModelDir(t)},
		VCR:    script(tapName, `exec "$vcr" "$@"`),
	}
	return b
}

const playing = `exec "$vcr" play --frontend-handshake tcp://127.0.0.1:$port --vllm-version ` + localVersion +
	` --vocab-size 2048 --max-model-len 4096`

func localTarget(seed uint64) target.Target {
	return target.Target{
		Line: "0.33", Tag: "v" + localVersion, ID: fmt.Sprintf("multiturn-s%d", seed), Scenario: target.Baseline, Seed: seed,
		Model:    target.Model{Key: "tiny", Source: "./tiny", Served: "tiny", GPU: "cpu", Engine: map[string]string{"max_num_seqs": "64"}},
		Workload: target.Workload{Name: "multiturn", Kind: load.Multiturn},
	}
}

// pid is the process of a program that was started.
func (b bench) pid(t *testing.T, name string) int {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(b.pids, name))
	require.NoError(t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	require.NoError(t, err)
	return pid
}

// wantNobody fails if a program still runs.
func (b bench) wantNobody(t *testing.T) {
	t.Helper()
	entries, err := os.ReadDir(b.pids)
	if err != nil || len(entries) == 0 {
		t.Fatalf("no program was started (%v)", err)
	}
	for _, entry := range entries {
		if info, err := entry.Info(); err == nil && info.Size() == 0 {
			continue // killed before it had said which process it is
		}
		if pid := b.pid(t, entry.Name()); syscall.Kill(pid, 0) == nil {
			t.Errorf("%s still runs, as process %d", entry.Name(), pid)
		}
	}
}

func TestLocal(t *testing.T) {
	if testing.Short() {
		t.Skip("runs whole programs")
	}
	vcr := testenv.VCR(t)
	t.Run("recorded", func(t *testing.T) { testLocalRecords(t, vcr) })
	t.Run("broken", func(t *testing.T) { testLocalBreaks(t, vcr) })
	t.Run("killed", func(t *testing.T) { testLocalKilled(t, vcr) })
	t.Run("interrupted", func(t *testing.T) { testLocalInterrupted(t, vcr) })
	t.Run("ports", func(t *testing.T) { testLocalPorts(t, vcr) })
}

// Two targets, one after the other; and the lock of their line, which another capture meets meanwhile.
func testLocalRecords(t *testing.T, vcr string) {
	b := newBench(t, vcr, playing)
	var once sync.Once
	b.opt.Progress = func(_ target.Target, step string) {
		if strings.HasPrefix(step, "engine up") {
			wantLight(t, b.pid(t, engineName))
		}
		once.Do(func() {
			_, err := CaptureAll(t.Context(), b.opt, []target.Target{localTarget(7)})
			require.ErrorContains(t, err, "line 0.33 is being captured already")
		})
	}
	targets := []target.Target{localTarget(7), localTarget(13)}
	outcomes, err := CaptureAll(t.Context(), b.opt, targets)
	require.NoError(t, err)
	b.wantNobody(t)
	for i, o := range outcomes {
		if o.Err != nil {
			t.Fatal(o.Err)
		}
		rec := o.Recording
		if rec.Target.ID != targets[i].ID || rec.Load.Completed != 180 || rec.EngineImage != "CPU engine: a player" || rec.EngineBuild != "a player" {
			t.Errorf("recording %d is %s with %d requests, of %q", i, rec.Target.ID, rec.Load.Completed, rec.EngineImage)
		}
		tr, err := trace.Read(rec.Trace, trace.Options{})
		require.NoError(t, err)
		require.Equal(t, len(tr.Records), 180, "%s has records", rec.Trace)
		if hash := tr.Meta.ConfigHash; hash == nil || *hash != targets[i].ConfigHash() {
			t.Errorf("%s: configuration hash %v, want that of the target", rec.Trace, hash)
		}
		records, err := load.ReadRecords(rec.Requests)
		require.True(t, err == nil && len(records) == 180, "%s: %d records, %v; want 180", rec.Requests, len(records), err)
		if info, err := os.Stat(filepath.Join(rec.Dir, target.LoadFile)); err != nil || info.Size() == 0 {
			t.Errorf("no report of the load: %v", err)
		}
	}
}

// wantLight checks that a process leads a session of the least weight.
func wantLight(t *testing.T, pid int) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/autogroup", pid))
	if errors.Is(err, os.ErrNotExist) {
		return // this kernel shares the processor in another way
	}
	require.True(t, err == nil && strings.HasSuffix(strings.TrimSpace(string(text)), " nice 19"), "the engine's session is %q, %v; want nice 19", text, err)
	own, err := os.ReadFile("/proc/self/autogroup")
	require.True(t, err == nil && !strings.HasSuffix(strings.TrimSpace(string(own)), " nice 19"), "our own session is %q, %v: the engine has none of its own", own, err)
}

func testLocalBreaks(t *testing.T, vcr string) {
	tests := []struct {
		name, engine string
		timeout      time.Duration
		failFast     bool
		want         []string
	}{
		{
			name: "engine dies", engine: "echo cannot load the model >&2; exit 3",
			want: []string{"the engine ended: exit status 3", "engine.log:\n| cannot load the model", "frontend.log"},
		},
		{
			name: "engine never serves", engine: "echo loading; exec sleep 600", timeout: 300 * time.Millisecond, failFast: true,
			want: []string{"the engine did not serve within 300ms", "engine.log:\n| loading"},
		},
		{
			name: "engine of another line", engine: strings.ReplaceAll(playing, localVersion, "0.27.1"),
			want: []string{"the tap ended: exit status ", "tap.log:\n| "},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			b := newBench(t, vcr, test.engine)
			b.opt.BootTimeout, b.opt.FailFast = test.timeout, test.failFast
			outcomes, err := CaptureAll(t.Context(), b.opt, []target.Target{localTarget(7), localTarget(13)})
			if err != nil || outcomes[0].Err == nil || outcomes[1].Err == nil {
				t.Fatalf("captured: %v, %+v", err, outcomes)
			}
			for _, want := range test.want {
				if err := outcomes[0].Err; !strings.Contains(err.Error(), want) {
					t.Errorf("error lacks %q: %v", want, err)
				}
			}
			b.wantNobody(t)
			_, err = os.Stat(filepath.Join(b.opt.Dir, "0.33", "multiturn-s13"))
			if begun := err == nil; begun == test.failFast || errors.Is(outcomes[1].Err, capture.ErrGivenUp) != test.failFast {
				t.Errorf("the next target was begun: %v, and ended with %v", begun, outcomes[1].Err)
			}
		})
	}
}

// Whichever program is killed when the load begins, it is named, and the others end.
func testLocalKilled(t *testing.T, vcr string) {
	for _, name := range []string{frontendName, tapName, engineName} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, vcr, playing)
			b.opt.Progress = func(_ target.Target, step string) {
				if strings.HasPrefix(step, "engine up") {
					if err := syscall.Kill(b.pid(t, name), syscall.SIGKILL); err != nil {
						t.Error(err)
					}
				}
			}
			_, err := Capture(t.Context(), b.opt, localTarget(7))
			if want := "the " + name + " ended: signal: killed"; err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want %q", err, want)
			}
			b.wantNobody(t)
		})
	}
}

func testLocalInterrupted(t *testing.T, vcr string) {
	enough := errors.New("enough")
	for _, step := range []string{"start", "engine up"} {
		t.Run(step, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			b := newBench(t, vcr, playing)
			b.opt.Progress = func(_ target.Target, now string) {
				if strings.HasPrefix(now, step) {
					cancel(enough)
				}
			}
			if _, err := Capture(ctx, b.opt, localTarget(7)); !errors.Is(err, enough) {
				t.Errorf("got %v, want the cause", err)
			}
			b.wantNobody(t)
		})
	}
}

// The ports of the first two tries are taken, each for another program.
func testLocalPorts(t *testing.T, vcr string) {
	b := newBench(t, vcr, playing)
	var again []string
	b.opt.Progress = func(_ target.Target, step string) {
		if strings.Contains(step, "again") {
			again = append(again, step)
		}
	}
	asked := 0
	b.opt.reserve = func() (vllmrs.Port, error) {
		port, err := vllmrs.Reserve()
		asked++
		if err != nil || asked != 1 && asked != 5 { // the frontend's of the first try, the tap's of the second
			return port, err
		}
		listener, err := net.Listen("tcp4", fmt.Sprintf("127.0.0.1:%d", port.Number()))
		if err != nil {
			return port, err
		}
		t.Cleanup(func() { listener.Close() })
		return port, nil
	}
	rec, err := Capture(t.Context(), b.opt, localTarget(7))
	require.True(t, err == nil && rec.Load.Completed == 180 && len(again) == 2, "%d requests after %d clashes, %v", rec.Load.Completed, len(again), err)
	b.wantNobody(t)
}

func TestWholeGzip(t *testing.T) {
	var whole bytes.Buffer
	w := gzip.NewWriter(&whole)
	if _, err := w.Write([]byte("some records\n")); err != nil {
		t.Fatal(err)
	}
	require.NoError(t, w.Close())
	var empty bytes.Buffer
	require.NoError(t, gzip.NewWriter(&empty).Close())
	tests := []struct {
		name string
		data []byte
		want string // in the error
	}{
		{name: "whole", data: whole.Bytes()},
		{name: "cut off", data: whole.Bytes()[:whole.Len()-4], want: "unexpected EOF"},
		{name: "no record", data: empty.Bytes(), want: "is empty"},
		{name: "nothing", want: "EOF"},
		{name: "not compressed", data: []byte("some records, of which none is compressed\n"), want: "invalid header"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "trace.jsonl.gz")
			require.NoError(t, os.WriteFile(path, test.data, 0o644))
			err := wholeGzip(path)
			if test.want == "" && err != nil {
				t.Error(err)
			}
			require.True(t, test.want == "" || (err != nil && strings.Contains(err.Error(), test.want) && strings.Contains(err.Error(), path)), "got %v, want %q and the path", err, test.want)
		})
	}
}
